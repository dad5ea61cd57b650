"""What other terminals show of runs."""

import io
import os
import time

import pytest
from rich.console import Console
from runs import a_run, gone, process

from disagg_cli.console.status_view import (
    COLOURS,
    print_log_line,
    runs_table,
    show_watched,
    status_table,
)
from disagg_cli.runtime import control, listing
from disagg_cli.runtime.phases import Phase


@pytest.fixture
def recorder(home):
    return a_run(*(process(name, phase="starting") for name in ("prefill-0", "decode-0", "router")))


def screen(**more):
    """A console whose text can be read back."""
    return Console(file=io.StringIO(), width=120, highlight=False, **more)


def text(renderable):
    out = screen()
    out.print(renderable)
    return out.file.getvalue()


def test_every_phase_has_a_colour():
    assert set(COLOURS) == set(Phase.__args__)


def test_the_status_of_a_run(recorder):
    recorder.process_phase("decode-0", "proven")
    shown = text(status_table(control.status(recorder.directory)))
    first, router, _, *rows = shown.splitlines()
    assert first.rstrip() == f"{recorder.state.run}: starting for 0 s"
    assert router.rstrip() == "router http://127.0.0.1:8000"
    assert [row.split()[:2] for row in rows] == [["prefill-0", "starting"], ["decode-0", "KV"], ["router", "starting"]]


def test_what_is_proven_of_a_process(recorder):
    recorder.process_phase("decode-0", "proven")
    recorder.process_phase("router", "proven")
    rows = text(status_table(control.status(recorder.directory))).splitlines()[-2:]
    assert [row.split()[1] for row in rows] == ["KV", "answers"]


def test_the_status_of_a_run_that_has_ended(recorder):
    recorder.state.exit_code, recorder.state.reason = 4, "decode-0 died: [exit code 1]"
    recorder.run_phase("ended")
    shown = text(status_table(control.status(recorder.directory)))
    assert "ended, exit code 4: decode-0 died: [exit code 1]" in shown


def test_the_status_of_a_lost_run_says_what_to_do(home):
    shown = text(status_table(control.status(a_run(process("decode-0"), supervisor=gone()).directory)))
    assert "lost, its supervisor is gone; `disagg stop` ends what is left" in shown


def test_how_long(recorder):
    recorder.state.processes["decode-0"].clock = time.monotonic() - 75
    recorder.save()
    assert "75 s" in text(status_table(control.status(recorder.directory)))


def test_what_it_waits_for_and_how_often_it_was_started_again(recorder):
    recorder.restarting("all to start again")
    assert "restarting for 0 s, waiting for all to start again; started again 1 time" in text(
        status_table(control.status(recorder.directory))
    )


def test_a_full_disk_is_shown(recorder):
    recorder.disk_trouble("disk full: no room")
    assert "disk full: no room" in text(status_table(control.status(recorder.directory)))


def going_on(recorder):
    """The run as it is looked at again and again, until it has ended."""
    yield control.status(recorder.directory)
    yield control.status(recorder.directory)
    recorder.process_phase("decode-0", "healthy")
    yield control.status(recorder.directory)
    recorder.run_phase("ended")
    yield control.status(recorder.directory)


def test_watched_where_no_terminal_is(recorder):
    """A table whenever something has changed, and no other."""
    out = screen()
    assert show_watched(going_on(recorder), out).phase == "ended"
    assert out.file.getvalue().count("router http") == 3


def test_watched_on_a_terminal(recorder):
    out = screen(force_terminal=True)
    assert show_watched(going_on(recorder), out).phase == "ended"
    shown = out.file.getvalue()
    assert "healthy" in shown
    assert shown.rindex("ended") > shown.rindex("starting for")


def test_runs_side_by_side(home):
    a_run(process("decode-0", phase="proven"), process("router"), name="first")
    a_run(name="second", supervisor=gone())
    header, second, first, hint = text(runs_table(listing.look(ended=False)[0], ())).splitlines()
    assert header.split() == ["run", "phase", "for", "supervisor", "processes", "ports"]
    assert second.split()[1:] == ["lost", "0", "s", "gone", "0", "of", "0"]
    assert first.split()[4:] == [str(os.getpid()), "1", "of", "2", "1"]
    assert "disagg ps --clean" in hint


def test_what_was_cleaned(home):
    done = [
        {"run": "a", "leftovers": ["decode-0", "router"], "error": ""},
        {"run": "b", "leftovers": [], "error": ""},
        {"run": "c", "leftovers": [], "error": "still running after SIGKILL: decode-0"},
    ]
    assert text(runs_table([], done)).splitlines()[:3] == [
        "a: ended decode-0, router",
        "b: nothing was left of it",
        "c: still running after SIGKILL: decode-0",
    ]


@pytest.mark.parametrize(("prefix", "line"), [(True, "decode-0     | [x] :100:\n"), (False, "[x] :100:\n")])
def test_a_line_of_a_log(capsys, prefix, line):
    print_log_line("decode-0", "[x] :100:", prefix=prefix)
    assert capsys.readouterr().out == line
