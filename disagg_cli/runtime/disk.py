"""How much room there is for logs and records, and what to say where there is none."""

import errno
from pathlib import Path

from disagg_cli.errors import LaunchFailed
from disagg_cli.executors.logfile import LEAST, MOST, room, trim

__all__ = ["AGAIN", "LEAST", "MOST", "is_full", "no_room", "room", "trim", "trouble"]

AGAIN = "the disk takes record and logs again"


def is_full(error: OSError) -> bool:
    """Whether something could not be written because the disk, or the user's share of it, is full."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def trouble(run: Path) -> str:
    """What is wrong where the disk that holds record and logs of a run is full."""
    return f"disk full: no room for record and logs in {run}"


def no_room(folder: Path, error: OSError) -> LaunchFailed:
    """What to say where a command cannot go on for that."""
    fix = "make room, or set DISAGG_HOME to a folder on a larger disk"
    return LaunchFailed(f"disk full: {error.strerror}", where=str(error.filename or folder), fix=fix)
