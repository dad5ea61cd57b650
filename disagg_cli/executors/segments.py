"""What killed servers leave in /dev/shm: 25 MB for each rank group, which nobody frees before the next boot.

SGLang unlinks its segments as it exits, and SIGKILL leaves it no time for that; once the file system is full, the next
server dies of SIGBUS. Source: SGLang 0.5.23, utils/stale_shm_cleanup.py, which cleans up in SGLang's own CI only, as it
cannot tell whose a segment is. disagg can: it looks what its own processes have mapped while they run, and removes that
once nobody has it mapped any more.

Standard library only, Python 3.8 or later: the ssh executor sends this text to its hosts, with helper.py and keeper.py.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

FOLDER = Path("/dev/shm")
"""Where POSIX shared memory is (shm_overview(7))."""

SEGMENT = re.compile(r"(/dev/shm/(?:sgl_shm_|sglang_loads_|multi_tokenizer_args_)[^/\s]+)$", re.MULTILINE)
"""Of SGLang alone (0.5.23: utils/stale_shm_cleanup.py, managers/load_snapshot.py). Others' are not ours to judge."""


def mapped(pids: Iterable[int]) -> frozenset[str]:
    """Segments in the memory of these processes now."""
    return frozenset(name for pid in pids for name in _mapped(pid))


def remove(names: Iterable[str]) -> tuple[str, ...]:
    """Remove those of these segments that no process has mapped any more; return their names."""
    there = [name for name in names if SEGMENT.fullmatch(name) and Path(name).exists()]
    if not there:
        return ()
    in_use = mapped(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
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
