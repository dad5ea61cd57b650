"""The kinds of places that a topology can name, and the one way to an executor."""

from importlib import import_module
from typing import cast

from disagg_cli.errors import UsageError
from disagg_cli.executors.protocol import Executor, Site

EXECUTORS: dict[str, str] = {
    "local": "disagg_cli.executors.local",
    "ssh": "disagg_cli.executors.ssh",
    "slurm": "disagg_cli.executors.slurm",
}
"""Name -> module with a function `executor(site)`. A new kind of place is such a module, and a line here.

A topology names one without settings of its own in spec.py as `executor: {other: {kind: NAME, hosts: [...]}}`.
"""


def make(kind: str, site: Site) -> Executor:
    """An executor of this kind. UsageError names those that there are."""
    if kind not in EXECUTORS:
        raise UsageError(
            f"there is no {kind} executor; there are: {', '.join(EXECUTORS)}",
            fix="see the command lines with --dry-run, and start them by hand",
        )
    return cast(Executor, import_module(EXECUTORS[kind]).executor(site))
