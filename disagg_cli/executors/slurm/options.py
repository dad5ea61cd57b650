"""Options as Slurm's commands take them. Pure."""

import re
from collections.abc import Mapping

from disagg_cli.topology.values import Scalar

WHERE_AND_WHO_PAYS: Mapping[str, tuple[str, ...]] = {
    "SBATCH_ACCOUNT": ("--account", "-A"),
    "SBATCH_CONSTRAINT": ("--constraint", "-C"),
    "SBATCH_PARTITION": ("--partition", "-p"),
    "SBATCH_QOS": ("--qos", "-q"),
    "SBATCH_RESERVATION": ("--reservation",),
    "SBATCH_TIMELIMIT": ("--time", "-t"),
    "SBATCH_WCKEY": ("--wckey",),
}
"""The variables that sbatch may read, with the options of the same meaning (sbatch(1), input environment variables)."""

ASKS = ("SLURM_", "SQUEUE_", "SCANCEL_", "SCONTROL_", "SRUN_")
"""How variables begin that Slurm's commands take for options."""
REACH_SLURM = re.compile(r"SLURM_(CONF|JWT|SACK\w*|CLUSTERS)")
"""Those that say where Slurm is, and who asks."""
NAME_THE_JOB = re.compile(r"SLURM_(JOB\w*|HET_SIZE|NODE_ALIASES|WORKING_CLUSTER|SPANK\w*|NETWORK)")
"""Those by which srun finds the allocation that it is in, and what of it holds for every step."""


def words(option: str, value: Scalar) -> tuple[str, ...]:
    """An option as Slurm's commands take it: long or of one letter, with a value or, where that is true, without."""
    if value is True:
        return (f"-{option}" if len(option) == 1 else f"--{option}",)
    return (f"-{option}", str(value)) if len(option) == 1 else (f"--{option}={value}",)


def for_sbatch(env: Mapping[str, str], script: str) -> tuple[dict[str, str], list[str]]:
    """An environment to submit a script in, and the names of variables that it lacks for that.

    sbatch takes a variable's word over the script's, and nobody would see in the script what was asked for. So it gets
    those that say what sites and users set once for all of their jobs, unless the script says it too, and no other.
    """
    said = set(re.findall(r"^#SBATCH '?(--?[A-Za-z-]+)", script, re.MULTILINE))
    welcome = {name for name, options in WHERE_AND_WHO_PAYS.items() if said.isdisjoint(options)}
    dropped = {name for name in env if name.startswith("SBATCH_")} - welcome
    return {name: value for name, value in undistracted(env).items() if name not in dropped}, sorted(dropped)


def undistracted(env: Mapping[str, str], *, in_job: bool = False) -> dict[str, str]:
    """An environment in which Slurm's commands do what their options say. in_job: they are about the job around it.

    Users set some of these variables for their own eyes (SQUEUE_PARTITION, SCANCEL_STATE), and salloc and sbatch set
    others to what the job was asked for with (SLURM_NTASKS, SLURM_GPUS_PER_TASK): srun takes them as wishes for a step.
    """
    kept = (REACH_SLURM, NAME_THE_JOB) if in_job else (REACH_SLURM,)
    return {k: v for k, v in env.items() if not k.startswith(ASKS) or any(one.fullmatch(k) for one in kept)}
