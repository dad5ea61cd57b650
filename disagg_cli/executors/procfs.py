"""Processes of a Linux host as /proc tells them, and files that say which process is meant.

Standard library only, Python 3.8 or later: the ssh executor sends this text to its hosts, with helper.py and keeper.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from pathlib import Path
from typing import Any

ENDED = "ended "
"""What a keeper calls itself once its worker has ended, with the exit code behind it: that needs no disk."""


def identity(pid: int) -> dict[str, Any]:
    """What tells a process from every other one, also from a later one with its pid, and after a reboot."""
    stat = _stat(pid)
    return {"pid": pid, "ticks": stat["ticks"] if stat else 0, "boot": _boot()}


def read_identity(file: Path) -> dict[str, Any]:
    """The same from a file; empty where there is none."""
    try:
        found: dict[str, Any] = json.loads(text(file) or "{}")
    except ValueError:
        return {}
    return found


def runs(known: dict[str, Any]) -> bool:
    """Whether this very process runs. A zombie does not."""
    stat = _stat(known["pid"]) if known and known["boot"] == _boot() else None
    return stat is not None and stat["runs"] and stat["ticks"] == known["ticks"]


def members(folder: Path) -> list[int]:
    """Pids of a worker's session, by the file `leader` in its folder. They may outlive that leader."""
    leader = read_identity(folder / "leader")
    if not leader or leader["boot"] != _boot():
        return []
    now = _stat(leader["pid"])
    if now and now["ticks"] != leader["ticks"]:
        return []  # while a session has members, the kernel gives its number to nobody else
    found = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    stats = {pid: _stat(pid) for pid in found}
    return sorted(pid for pid, stat in stats.items() if stat and stat["runs"] and stat["session"] == leader["pid"])


def _stat(pid: int) -> dict[str, Any] | None:
    """What proc(5) says of a process. A zombie whose other threads have not ended still runs: it holds its sockets."""
    fields = text(Path(f"/proc/{pid}/stat")).rpartition(") ")[2].split()
    if not fields:
        return None
    alive = fields[0] not in "ZX" or int(fields[17]) > 1
    return {"runs": alive, "session": int(fields[3]), "ticks": int(fields[19])}


def born(ticks: int) -> float:
    """Seconds since the boot of a start time in clock ticks, as in sessions.py."""
    return ticks / os.sysconf("SC_CLK_TCK")


def _boot() -> str:
    return text(Path("/proc/sys/kernel/random/boot_id"))


def said_to_have_ended(keeper: dict[str, Any]) -> int | None:
    """The exit code that a keeper which runs tells by its name; None where there is none."""
    name = text(Path(f"/proc/{keeper['pid']}/comm")).strip() if runs(keeper) else ""
    return int(name[len(ENDED) :]) if name.startswith(ENDED) else None


def oom_kills() -> int:
    """How often the OOM killer has struck on this machine since its boot (proc(5), /proc/vmstat, oom_kill)."""
    found = re.search(r"^oom_kill (\d+)$", text(Path("/proc/vmstat")), re.MULTILINE)
    return int(found.group(1)) if found else 0


def send(pid: int, signum: int) -> None:
    """Send a signal to a process, or to a group by its negative number, that may be gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signum)


def touch(file: Path) -> None:
    """Say that somebody was here."""
    with contextlib.suppress(OSError):
        if not file.exists():
            file.touch(mode=0o600)
        os.utime(file)


def touched(file: Path) -> int:
    """When somebody was here; only for comparing, as clocks may jump."""
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return 0


def write(file: Path, content: str) -> None:
    """Write a file so that a reader never sees half of it."""
    draft = file.with_name(file.name + ".part")
    draft.write_text(content)
    draft.rename(file)


def text(file: Path) -> str:
    """A file's text; empty where there is none."""
    try:
        return file.read_text()
    except OSError:
        return ""


def size(file: Path) -> int | None:
    """A file's bytes; None where there is none."""
    try:
        return file.stat().st_size
    except OSError:
        return None
