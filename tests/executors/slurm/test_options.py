"""How options are spelt, and which of sbatch's variables may have a say."""

import pytest

from disagg_cli.executors.slurm.options import for_sbatch, undistracted, words


@pytest.mark.parametrize(
    ("option", "value", "spelt"),
    [
        ("nodes", 3, ("--nodes=3",)),
        ("exclusive", True, ("--exclusive",)),
        ("C", "gb200", ("-C", "gb200")),
        ("Q", True, ("-Q",)),
    ],
)
def test_words(option, value, spelt):
    assert words(option, value) == spelt


def test_what_users_set_for_all_their_jobs_reaches_sbatch():
    env = {"SBATCH_ACCOUNT": "a", "SBATCH_QOS": "q", "SBATCH_TIMELIMIT": "10", "SLURM_CONF": "/x", "HOME": "/root"}
    assert for_sbatch(env, "#!/bin/bash\n#SBATCH --nodes=3\n") == (env, [])


def test_what_the_script_says_wins():
    env = {"SBATCH_ACCOUNT": "a", "SBATCH_PARTITION": "p", "SBATCH_TIMELIMIT": "10", "SBATCH_QOS": "q"}
    script = "#SBATCH --account=b\n#SBATCH -p x\n#SBATCH '-t' '1:00'\n"
    assert for_sbatch(env, script) == ({"SBATCH_QOS": "q"}, ["SBATCH_ACCOUNT", "SBATCH_PARTITION", "SBATCH_TIMELIMIT"])


@pytest.mark.parametrize("name", ["SBATCH_EXCLUSIVE", "SBATCH_NO_KILL", "SBATCH_REQUEUE", "SBATCH_CLUSTERS"])
def test_what_would_change_the_job_behind_the_scripts_back_does_not(name):
    assert for_sbatch({name: "1", "HOME": "/root"}, "#SBATCH --nodes=3\n") == ({"HOME": "/root"}, [name])


def test_variables_that_would_be_taken_for_options_are_left_out():
    env = {"SLURM_CONF": "/x", "SLURM_JWT": "t", "SLURM_JOB_ID": "7", "SLURM_HET_SIZE": "2", "HOME": "/root"}
    wishes = {"SQUEUE_PARTITION": "p", "SCANCEL_STATE": "PENDING", "SLURM_NTASKS": "8", "SRUN_EXPORT_ENV": "NONE"}
    assert undistracted(env | wishes, in_job=True) == env
    assert undistracted(env | wishes) == {"SLURM_CONF": "/x", "SLURM_JWT": "t", "HOME": "/root"}
