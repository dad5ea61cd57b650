"""Logs: read as they grow, each line once, and quoted so that the quotation says something."""

import pytest

from disagg_cli.runtime import logs
from disagg_cli.runtime.logs import Log, indented, keep_older, last_lines, tail

DEAD = "[2026-01-01 00:00:00] Subprocess scheduler_0 (pid=77) crashed with exit code -9. Triggering SIGQUIT\n"


@pytest.fixture
def log(tmp_path):
    return tmp_path / "decode-0.log"


def append(log, text):
    with log.open("a") as file:
        file.write(text)


def test_the_last_lines_that_say_something(log):
    log.write_text("".join(f"line {n}\n\n" for n in range(20)))
    assert tail(log, lines=2) == "line 18\nline 19"


def test_a_long_line_is_cut_and_says_how_long_it_is(log):
    log.write_text("x" * 1000)
    assert tail(log) == "x" * 200 + " ... (1,000 characters)"


def test_nothing_steers_the_terminal(log):
    """The router's log has colours; whatever a prompt holds may be logged."""
    log.write_bytes(b"\x1b[2J\x1b]0;name\x07\x1b[31mred\x1b[0m\tand \x9b2J\r\x08\xff\n\x1b[0m\n")
    assert tail(log) == "red     and \ufffd2J\n\ufffd"


def test_lines_that_say_nothing_are_left_out():
    text = """[2026-01-01 00:00:00] server_args={'model_path': '/m', 'tokenizer_path': '/m'}
[2026-01-01 00:00:01] INFO:     127.0.0.1:35942 - "GET /health HTTP/1.1" 200 OK
    self.run()
    ^^^^^^^^^^
RuntimeError: the reason
RuntimeError: the reason
"""
    assert last_lines(text, 8) == ["    self.run()", "RuntimeError: the reason"]


def test_a_request_that_failed_says_something():
    assert last_lines('127.0.0.1:1 - "POST /generate HTTP/1.1" 500 Internal Server Error', 8)


@pytest.mark.parametrize("content", [None, b"", b"\n \n", b"\0" * 5000])
def test_a_log_without_lines(log, content):
    if content is not None:
        log.write_bytes(content)
    assert tail(log) == "(the log is empty)"


def test_quoted():
    assert indented("a\nb") == "  | a\n  | b"


def test_loading_and_a_crash_are_seen(log):
    one = Log(log)
    append(log, "Load weight begin. avail mem=1 GB\n")
    one.look()
    assert (one.loading, one.dying) == (True, "")
    append(log, DEAD)
    one.look()
    assert one.dying.startswith("one of its ranks failed (Subprocess scheduler_0 (pid=77) crashed with exit code -9")


def test_a_server_that_cannot_listen_is_seen_before_it_ends(log):
    """SGLang goes on for ten seconds, as if nothing were wrong."""
    one = Log(log)
    append(log, "ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 21016): address in use\n")
    one.look()
    assert one.dying.startswith("it cannot listen ([Errno 98]")


def test_a_line_that_comes_in_two_pieces_is_seen(log):
    one = Log(log)
    for piece in (DEAD[:40], DEAD[40:]):
        append(log, piece)
        one.look()
    assert one.dying


def test_what_was_there_before_belongs_to_another_start(log):
    append(log, DEAD)
    one = Log(log)
    append(log, "hello\n")
    one.look()
    assert one.dying == ""


def test_every_byte_is_read_once(log, monkeypatch):
    """A supervisor that reads whole logs ten times a second takes a core for a few long ones."""
    read = []
    real = logs.read
    monkeypatch.setattr(logs, "read", lambda *args: read.append(len(real(*args))) or real(*args))
    one = Log(log)
    for _ in range(50):
        append(log, "x" * 999 + "\n")
        one.look()
        one.look()
    assert sum(read) == 50_000
    assert len(read) == 50


def test_of_a_flood_only_the_end_is_read(log):
    one = Log(log)
    append(log, "x" * (3 * logs.MOST_AT_ONCE) + "\n" + DEAD)
    one.look()
    assert one.dying


def test_a_log_that_is_begun_anew_is_read_from_its_start(log):
    one = Log(log)
    append(log, "x" * 1000)
    one.look()
    log.write_text(DEAD)
    one.look()
    assert one.dying


def test_older_logs_are_kept_under_other_names(log):
    for text in ("first", "second", "third"):
        keep_older(log)
        log.write_text(text)
    assert [file.read_text() for file in sorted(log.parent.iterdir())] == ["third", "first", "second"]
    assert [file.name for file in sorted(log.parent.glob("*.log"))] == ["decode-0.log"]


def test_there_is_no_older_log_of_what_has_not_been_started(log):
    keep_older(log)
    log.write_text("")
    keep_older(log)
    assert [file.name for file in log.parent.iterdir()] == ["decode-0.log"]


@pytest.mark.parametrize(("most", "text"), [(100, "0123456789"), (10, "0123456789"), (6, "0123456789"), (3, "012789")])
def test_both_ends_of_a_log(tmp_path, most, text):
    log = tmp_path / "log"
    log.write_text("0123456789")
    assert logs.both_ends(log, most) == text
