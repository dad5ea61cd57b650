"""All runs at once, and what is cleared away of those that nobody supervises any more."""

import contextlib
import subprocess
import time

import pytest
from runs import SLEEP, a_run, gone, process

from disagg_cli.errors import UsageError
from disagg_cli.executors import sessions
from disagg_cli.runtime import control, listing, rundir


@contextlib.contextmanager
def running():
    child = subprocess.Popen(SLEEP, start_new_session=True)
    try:
        yield child
    finally:
        sessions.kill_session(child.pid)
        child.wait(10)


def ended(name):
    recorder = a_run(name=name, supervisor=gone())
    recorder.run_phase("ended")
    return recorder


def names(*, all_of_them=False):
    return [one.status.state["name"] for one in listing.look(ended=all_of_them)[0]]


def test_no_run(home):
    assert listing.look(ended=True) == ((), ())


def test_runs_side_by_side_the_newest_first(home):
    for name in ("first", "second", "third"):
        a_run(name=name)
    assert names() == ["third", "second", "first"]


def test_what_has_ended_is_listed_where_it_is_asked_for(home):
    a_run(name="goes on")
    ended("over")
    assert names() == ["goes on"]
    assert names(all_of_them=True) == ["over", "goes on"]


def test_a_run_without_its_supervisor_is_stale(home):
    a_run(name="lost", supervisor=gone())
    (one,), _ = listing.look(ended=False)
    assert (one.stale, one.document()["phase"]) == (True, "lost")


def test_how_many_are_there_and_where_they_listen(home):
    recorder = a_run(process("prefill-0", phase="proven"), process("decode-0", phase="failed"), process("router"))
    for number, one in enumerate(recorder.state.processes.values()):
        one.url = f"http://127.0.0.1:{3000 + number}"
    recorder.save()
    (one,), _ = listing.look(ended=False)
    assert (one.alive, one.ports) == (1, (3000, 3001, 3002))


def test_how_many_outlived_their_supervisor(home):
    """Not those on record: the warm parent, say, has ended them."""
    with running() as worker:
        a_run(
            process("prefill-0", worker.pid, phase="proven"),
            process("decode-0", gone(), born=1.0, phase="proven"),
            supervisor=gone(),
        )
        (one,), _ = listing.look(ended=False)
        assert one.alive == 1


def test_a_folder_that_holds_no_run_is_passed_over(home):
    a_run(name="demo")
    (home / "runs" / "x").mkdir()
    (home / "runs" / "y").mkdir()
    (home / "runs" / "y" / "state.json").write_text('{"half": ')
    assert names() == ["demo"]


@pytest.mark.parametrize("record", ["state.json", "job.json"])
def test_a_run_that_cannot_be_read_is_named(home, record):
    a_run(name="fine")
    broken = a_run(name="broken").directory
    (broken.path / record).write_text("{")
    assert names(all_of_them=True) == ["fine"]
    _, (said,) = listing.look(ended=False)
    assert said.startswith(f"{record} of {broken.path.name} cannot be read: ")


def test_cleaning_ends_what_is_left_and_keeps_the_record(home):
    with running() as left, running() as supervised:
        stale = a_run(process("decode-0", left.pid), name="stale", supervisor=gone())
        a_run(process("decode-0", supervised.pid), name="fine")
        (done,) = listing.clean()
        assert (done["run"], done["leftovers"], done["error"]) == (stale.state.run, ["decode-0"], "")
        assert not sessions.members(left.pid)
        assert supervised.poll() is None
    assert stale.directory.path.is_dir()
    assert control.status(stale.directory).phase == "ended"
    assert names() == ["fine"]
    assert listing.clean() == ()


def test_what_a_run_could_not_end_is_listed_and_cleaned_away(home):
    """Its supervisor gave up on it, and has ended."""
    with running() as left:
        over = a_run(process("decode-0", left.pid, phase="proven"), name="over", supervisor=gone())
        over.run_phase("ended")
        (one,) = listing.look(ended=False)[0]
        assert (one.stale, one.alive) == (True, 1)
        (done,) = listing.clean()
        assert (done["leftovers"], done["error"]) == (["decode-0"], "")
    assert names() == []


def test_a_run_that_another_machine_supervises_is_not_lost(home):
    """A home folder that many hosts share: its pid means nothing here."""
    recorder = a_run(process("decode-0"), supervisor=gone())
    recorder.state.host, recorder.state.boot = "login-2", "another-boot"
    recorder.save()
    now = control.status(recorder.directory)
    assert (now.phase, now.elsewhere) == ("starting", True)
    assert listing.clean() == ()
    with pytest.raises(UsageError, match=r"run on login-2"):
        control.stop(recorder.directory)


def test_a_run_can_be_watched_to_its_end(home, monkeypatch):
    monkeypatch.setattr(control, "WATCH_S", 0.001)
    recorder = a_run(process("decode-0"))
    seen = []
    for now in control.watch(recorder.directory):
        seen.append(now.phase)
        recorder.run_phase({"starting": "probing", "probing": "serving", "serving": "ended"}[now.phase])
        if now.phase == "serving":
            break
    assert seen == ["starting", "probing", "serving"]
    assert [now.phase for now in control.watch(recorder.directory)] == ["ended"]


@pytest.mark.timeout(10)
def test_watching_ends_when_the_supervisor_is_gone(home):
    recorder = a_run(supervisor=gone())
    begun = time.monotonic()
    assert [now.phase for now in control.watch(recorder.directory)] == ["lost"]
    assert time.monotonic() - begun < 5
    assert rundir.current() == recorder.directory
