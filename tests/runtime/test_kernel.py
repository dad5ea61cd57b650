"""What the machine knows of a death."""

import pytest

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
