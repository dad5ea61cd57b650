"""The logs of a run, read and followed from another terminal."""

import pytest
from runs import a_run, gone, process

from disagg_cli.errors import UsageError
from disagg_cli.runtime import control


@pytest.fixture
def logged(home):
    """A run whose two processes have written a few lines."""
    recorder = a_run(process("prefill-0"), process("decode-0"))
    for name in ("prefill-0", "decode-0"):
        recorder.directory.log(name).write_text("".join(f"{name} {n}\n" for n in range(5)))
    return recorder


def logs(recorder, process=None, lines=20, follow=False):
    return control.read_logs(recorder.directory, process, lines=lines, follow=follow)


def test_all_logs(logged):
    assert list(logs(logged))[::5] == [("decode-0", "decode-0 0"), ("prefill-0", "prefill-0 0")]


def test_the_last_lines_of_one_log(logged):
    assert list(logs(logged, "decode-0", lines=2)) == [("decode-0", "decode-0 3"), ("decode-0", "decode-0 4")]


def test_the_last_line_is_shown_although_no_newline_ends_it(logged):
    """Often it is the one that tells what a process died of."""
    append(logged, "decode-0", "terminate called without an active exception")
    assert [line for _, line in logs(logged, "decode-0", lines=2)] == [
        "decode-0 4",
        "terminate called without an active exception",
    ]


def test_no_lines(logged):
    assert list(logs(logged, lines=0)) == []


def test_a_log_of_nobody(logged):
    with pytest.raises(UsageError, match=r"no log of decode-7 in demo-.*") as caught:
        list(logs(logged, "decode-7"))
    assert caught.value.fix == "there are: decode-0, prefill-0"


def test_bytes_that_are_no_text(logged):
    logged.directory.log("decode-0").write_bytes(b"\xff\xfe\n")
    assert list(logs(logged, "decode-0")) == [("decode-0", "\ufffd\ufffd")]


def append(recorder, name, text):
    with recorder.directory.log(name).open("a") as log:
        log.write(text)


def test_following_to_the_end(logged, monkeypatch):
    """Lines as they come, whole ones only; the last ones too, that were written while nobody looked."""
    monkeypatch.setattr(control, "FOLLOW_S", 0.001)
    follow = logs(logged, "decode-0", lines=1, follow=True)
    assert next(follow)[1] == "decode-0 4"
    append(logged, "decode-0", "half a ")
    append(logged, "decode-0", "line\nfirst\n")
    assert [next(follow)[1] for _ in range(2)] == ["half a line", "first"]
    append(logged, "decode-0", "last\n")
    logged.run_phase("ended")
    assert [line for _, line in follow] == ["last"]


def test_following_a_line_that_has_no_end(logged, monkeypatch):
    """It comes in pieces, and no more than one is held."""
    monkeypatch.setattr(control, "FOLLOW_S", 0.001)
    monkeypatch.setattr(control, "MOST_AT_ONCE", 100)
    follow = logs(logged, "decode-0", lines=1, follow=True)
    next(follow)
    append(logged, "decode-0", "x" * 250)
    pieces = [next(follow)[1] for _ in range(2)]
    logged.run_phase("ended")
    assert [len(piece) for piece in [*pieces, *(line for _, line in follow)]] == [100, 100, 50]


def test_following_a_log_whose_middle_was_dropped(logged, monkeypatch):
    """As long as the hole may be, nothing of it is read."""
    monkeypatch.setattr(control, "FOLLOW_S", 0.001)
    follow = logs(logged, "decode-0", lines=1, follow=True)
    next(follow)
    with logged.directory.log("decode-0").open("r+b") as log:
        log.seek(1 << 40)
        log.write(b"after it\n")
    logged.run_phase("ended")
    assert [line for _, line in follow if line] == [
        "disagg: 1048575 MiB of this log were dropped before anybody could fetch them",
        "after it",
    ]


def test_following_a_log_that_comes_later(logged, monkeypatch):
    monkeypatch.setattr(control, "FOLLOW_S", 0.001)
    follow = logs(logged, lines=1, follow=True)
    assert [next(follow)[0] for _ in range(2)] == ["decode-0", "prefill-0"]
    append(logged, "router", "listening\n")
    assert next(follow) == ("router", "listening")


@pytest.mark.timeout(10)
def test_following_a_run_whose_supervisor_is_gone_ends(home):
    recorder = a_run(process("decode-0"), supervisor=gone())
    append(recorder, "decode-0", "last\n")
    assert list(logs(recorder, follow=True)) == [("decode-0", "last")]
