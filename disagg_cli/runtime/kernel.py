"""What this machine's kernel knows of a death that no log tells."""

import re
from pathlib import Path

from disagg_cli.runtime import disk
from disagg_cli.runtime.crash import Sign

SHARED_MEMORY = Path("/dev/shm")
"""Where POSIX shared memory is (shm_overview(7))."""


def oom_kills() -> int:
    """How often the OOM killer has struck on this machine since its boot (proc(5), /proc/vmstat, oom_kill)."""
    try:
        found = re.search(r"^oom_kill (\d+)$", Path("/proc/vmstat").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) if found else 0


def signs(codes: set[int], kills_before: int, folder: Path) -> frozenset[Sign]:
    """What the machine says of a process that ended with these exit codes.

    kills_before: oom_kills() a few seconds ago. folder: where its log is.
    """
    found: set[Sign] = set()
    if -9 in codes and oom_kills() > kills_before:
        found.add("oom_killer")
    if -7 in codes and disk.room(SHARED_MEMORY) < disk.LEAST:
        found.add("shm_full")
    if codes - {-9, -15} and disk.room(folder) < disk.LEAST:
        found.add("disk_full")
    return frozenset(found)
