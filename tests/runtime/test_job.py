"""Runs that a Slurm job supervises, where Slurm itself does not answer."""

import pytest
from runs import a_run

from disagg_cli.errors import ProbeFailed
from disagg_cli.runtime import job


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
