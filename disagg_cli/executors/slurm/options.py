"""Options as Slurm's commands take them. Pure."""

from disagg_cli.topology.values import Scalar


def words(option: str, value: Scalar) -> tuple[str, ...]:
    """An option as Slurm's commands take it: long or of one letter, with a value or, where that is true, without."""
    if value is True:
        return (f"-{option}" if len(option) == 1 else f"--{option}",)
    return (f"-{option}", str(value)) if len(option) == 1 else (f"--{option}={value}",)
