"""Runs that a Slurm job supervises, where Slurm itself does not answer."""

import os
import signal

import pytest
from command_line import disagg
from runs import a_run

from disagg_cli.errors import ProbeFailed
from disagg_cli.runtime import control, job


@pytest.fixture
def silent(tmp_path, monkeypatch):
    """Slurm's commands fail."""
    for name in ("squeue", "scontrol"):
        (tmp_path / name).write_text(
            "#!/bin/sh\necho 'slurm_load_jobs error: Unable to contact controller' >&2; exit 1\n"
        )
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(job, "SILENT_S", 0.0)


def ended(exit_code):
    recorder = a_run()
    recorder.state.exit_code, recorder.state.reason = exit_code, "no KV moved"
    recorder.run_phase("ended")
    return recorder.directory


def test_what_ended_a_run_does_not_depend_on_slurms_answer(home, silent):
    with pytest.raises(ProbeFailed, match="no KV moved"):
        job.raise_failure(ended(5), "12")
    job.raise_failure(ended(0), "12")


def test_a_run_is_not_lost_because_slurm_does_not_answer(home, silent):
    assert job.look(a_run().directory, "12").supervised


@pytest.fixture
def questions(tmp_path, monkeypatch):
    """Job 12 runs. How often Slurm has been asked."""
    (tmp_path / "squeue").write_text(f"#!/bin/sh\necho >> {tmp_path}/asked; echo '12|RUNNING|None|n1|n1'\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return lambda: len((tmp_path / "asked").read_text())


def in_job():
    recorder = a_run()
    recorder.directory.write(job.RECORD, {"job": "12"})
    return recorder


@pytest.mark.parametrize(
    ("said", "kept"), [("12|PENDING|Resources||", True), ("12|CANCELLED|None||", False), ("", False), (None, True)]
)
def test_what_was_submitted_does_not_outlive_its_job(home, silent, tmp_path, said, kept):
    """Nobody may have followed it to its end, and it may have ended before it read that."""
    if said is not None:
        (tmp_path / "squeue").write_text(f"#!/bin/sh\nprintf '{said}'\n")
    run = in_job().directory
    run.write_text(job.TOPOLOGY, "api-key: planted")
    control.status(run)
    assert (run.path / job.TOPOLOGY).exists() == kept


def test_a_job_takes_away_what_it_has_read(home):
    """Whatever it makes of it."""
    run = in_job().directory
    run.write_text(job.TOPOLOGY, "no: topology")
    assert disagg("launch", run.path / job.TOPOLOGY, "--run-dir", run.path).returncode == 2
    assert not (run.path / job.TOPOLOGY).exists()


def test_whoever_watches_a_run_asks_slurm_now_and_then(home, questions, monkeypatch):
    monkeypatch.setattr(control, "WATCH_S", 0.0)
    seen = control.watch(in_job().directory)
    assert {next(seen).phase for _ in range(100)} == {"starting"}
    assert questions() == 1
    monkeypatch.setattr(job, "ASK_S", 0.0)
    next(seen)
    assert questions() == 2


def test_whoever_follows_logs_asks_slurm_now_and_then(home, questions, monkeypatch):
    monkeypatch.setattr(control, "FOLLOW_S", 0.0)
    recorder = in_job()
    (log := recorder.directory.log("decode-0")).write_text("one\n")
    lines = control.read_logs(recorder.directory, None, lines=1, follow=True)
    for _ in range(100):
        next(lines)
        log.write_text(log.read_text() + "more\n")
    assert questions() == 1
    recorder.run_phase("ended")
    assert ("decode-0", "more") in list(lines)


def test_a_look_that_fails_is_no_answer_that_is_still_to_come(home, monkeypatch):
    """It is raised where somebody waits for it."""
    seen = job.Lookout(in_job().directory, "12")
    monkeypatch.setattr(job, "look", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        seen()


def test_a_signal_waits_also_while_slurm_is_asked(home, monkeypatch):
    """What is not to be interrupted holds signals back in its own thread: another would let them through."""
    held_back = []

    def look(*_):
        held_back.extend(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
        return job.Now(state={}, job=None)

    monkeypatch.setattr(job, "look", look)
    job.Lookout(in_job().directory, "12")()
    assert {signal.SIGINT, signal.SIGTERM, signal.SIGHUP} <= set(held_back)


def test_what_the_runs_files_say_is_seen_at_once(home, questions):
    recorder = in_job()
    seen = job.Lookout(recorder.directory, "12")
    assert seen().told["job"]["state"] == "RUNNING"
    recorder.run_phase("ended")
    assert seen().state["phase"] == "ended"
