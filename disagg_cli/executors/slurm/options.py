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
    return {name: value for name, value in env.items() if name not in dropped}, sorted(dropped)
