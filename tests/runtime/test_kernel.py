"""What the machine knows of a death."""

import pytest

from disagg_cli.executors.last_word import last_word
from disagg_cli.runtime import disk, kernel


def test_the_oom_killer_counts(monkeypatch):
    before = kernel.oom_kills()
    assert before >= 0
    assert kernel.signs({-9}, before - 1, kernel.SHARED_MEMORY) == {"oom_killer"}


def test_a_kill_that_the_kernel_has_not_counted_was_somebody_elses():
    assert kernel.signs({-9}, kernel.oom_kills(), kernel.SHARED_MEMORY) == frozenset()


@pytest.mark.parametrize(
    ("code", "sign"), [(-7, "shm_full"), (1, "disk_full")], ids=["SIGBUS", "an error that no log could take"]
)
def test_where_there_is_no_room(tmp_path, monkeypatch, code, sign):
    assert kernel.signs({code}, kernel.oom_kills(), tmp_path) == frozenset()
    monkeypatch.setattr(disk, "room", lambda folder: 0)
    assert sign in kernel.signs({code}, kernel.oom_kills(), tmp_path)


SAID = last_word("h2", ["oom_killer", "disk_full"])


@pytest.mark.parametrize(("code", "sign"), [(-9, "oom_killer"), (1, "disk_full"), (-7, "disk_full"), (-15, None)])
def test_what_another_host_has_said(tmp_path, monkeypatch, code, sign):
    """In the log. What this machine counts is not about it."""
    assert (
        SAID
        == "disagg: as this ended on h2, the kernel's OOM killer had just struck and the disk with its log was full\n"
    )
    monkeypatch.setattr(kernel, "oom_kills", lambda: 1 << 40)
    assert kernel.told({code}, f"a line\n{SAID}", tmp_path) == ({sign} if sign else frozenset())
    assert kernel.told({code}, "a line\n", tmp_path) == frozenset()
