"""What a launch in a Slurm job believes of that job."""

import os

import pytest
from runs import a_run

from disagg_cli.errors import Interrupted, LaunchFailed
from disagg_cli.runtime import job
from disagg_cli.runtime.submission import kept


@pytest.fixture
def in_job(tmp_path, monkeypatch):
    """A shell with the number of a job. Called: Slurm says from now on that the job is in this state."""

    def is_now(state, reason="None"):
        (tmp_path / "scontrol").write_text(
            "#!/bin/sh\n"
            'if [ $3 = node ]; then echo "NodeName=n2 State=DOWN*"; exit; fi\n'
            f'echo "JobId=77 JobState={state} Reason={reason} PreemptTime=None"\n'
        )
        (tmp_path / "scontrol").chmod(0o755)

    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    return is_now


def death_in(directory, meanwhile=lambda: None):
    with kept(directory):
        meanwhile()
        raise LaunchFailed("decode-0 died")


def test_a_death_in_a_job_that_goes_on(home, in_job):
    in_job("RUNNING")
    with pytest.raises(LaunchFailed, match="decode-0 died"):
        death_in(a_run().directory)


def test_a_death_because_slurm_ends_the_job(home, in_job):
    in_job("RUNNING")
    with pytest.raises(Interrupted, match="Slurm has ended job 77"):
        death_in(a_run().directory, lambda: in_job("COMPLETING"))


def test_a_job_that_slurm_ends_because_it_has_lost_a_node(home, in_job):
    """Told to stop, disagg has stopped, and knows of nothing that has failed."""
    in_job("RUNNING")
    directory = a_run().directory
    with pytest.raises(LaunchFailed, match="Slurm has ended job 77: node n2 has failed"), kept(directory):
        in_job("COMPLETING", "NodeDown")
    assert directory.state()["exit_code"] == 4


def test_the_number_of_a_job_that_was_over_before_means_nothing(home, in_job):
    in_job("COMPLETED")
    directory = a_run().directory
    with pytest.raises(LaunchFailed, match="decode-0 died"):
        death_in(directory)
    assert job.around(directory) is None
