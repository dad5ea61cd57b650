"""The nodes of a Slurm job.

options.py  how options are spelt
script.py   the sbatch script of a deployment
client.py   Slurm's commands, and how their answers are read
nodes.py    the nodes of an allocation, behind the hosts of a deployment
srun.py     the command line of one step
steps.py    the executor: one srun step for each process

A job's only program is `disagg launch`, which finds itself in an allocation and starts a step for each process.
"""

from disagg_cli.executors.protocol import Executor, Site


def executor(site: Site) -> Executor:
    """Steps of the allocation that this process runs in."""
    from disagg_cli.executors.slurm.steps import SlurmExecutor

    return SlurmExecutor(site)
