"""What killed servers leave in /dev/shm: 25 MB for each rank group, which nobody frees before the next boot.

SGLang unlinks its segments as it exits, and SIGKILL leaves it no time for that; once the file system is full, the next
server dies of SIGBUS. Source: SGLang 0.5.23, utils/stale_shm_cleanup.py, which cleans up in SGLang's own CI only, as it
cannot tell whose a segment is. disagg can: it looks what its own processes have mapped while they run, and removes that
once nobody has it mapped any more.
"""

import contextlib
import re
from collections.abc import Iterable
from pathlib import Path

import psutil

from disagg_cli.executors import sessions

SEGMENT = re.compile(r"(/dev/shm/(?:sgl_shm_|sglang_loads_|multi_tokenizer_args_)[^/\s]+)$", re.MULTILINE)
"""Of SGLang alone (0.5.23: utils/stale_shm_cleanup.py, managers/load_snapshot.py). Others' are not ours to judge."""


def of_session(session: int) -> frozenset[str]:
    """Segments that the processes of a session have mapped now."""
    return frozenset(name for pid in sessions.members(session) for name in _mapped(pid))


def remove(segments: Iterable[str]) -> tuple[str, ...]:
    """Remove those of these segments that no process has mapped any more; return their names."""
    there = [name for name in segments if SEGMENT.fullmatch(name) and Path(name).exists()]
    if not there:
        return ()
    in_use = {name for pid in psutil.pids() for name in _mapped(pid)}
    removed = tuple(name for name in there if name not in in_use)
    for name in removed:
        with contextlib.suppress(OSError):
            Path(name).unlink()
    return removed


def _mapped(pid: int) -> set[str]:
    """Segments in a process's memory. Those of other users are neither to be seen nor able to use ours (mode 0600)."""
    try:
        return set(SEGMENT.findall(Path(f"/proc/{pid}/maps").read_text()))
    except OSError:
        return set()
