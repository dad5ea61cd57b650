"""Sessions of processes on this machine: who belongs to one, and how to end it."""

import contextlib
import os
import signal
import socket
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import psutil


def members(session: int) -> tuple[int, ...]:
    """Pids of a session, zombies left out. They outlive the leader whose pid names the session."""
    return tuple(pid for pid in psutil.pids() if _session_of(pid) == session and _runs(pid))


@cache
def boot() -> str:
    """Names this boot of this machine; empty where the system does not tell (proc(5): kernel/random/boot_id)."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def born(pid: int) -> float:
    """When a process started, in seconds since the boot; 0 if it is gone.

    Not since the epoch: the kernel keeps no such time, and whoever computes it gets another one once the clock is set.
    """
    stat = _stat(pid)
    return int(stat[19]) / os.sysconf("SC_CLK_TCK") if stat else 0.0


def _stat(pid: int) -> list[str]:
    """What the kernel says of a process, from its state on; empty if it is gone.

    Source: proc(5), /proc/PID/stat, from field 3 on: 20 is the number of threads, 22 the start in clock ticks. A
    command's name before them may hold anything.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def same_process(pid: int, born_at: float) -> bool:
    """Whether this pid still is the process that started then."""
    return born_at > 0 and abs(born(pid) - born_at) < 1.0 and _runs(pid)


def suspended(pid: int) -> bool:
    """Whether a process was stopped, as by Ctrl-Z, and does nothing until it is continued."""
    return _stat(pid)[:1] in (["T"], ["t"])


def leaders_with(variable: str) -> dict[int, str]:
    """Leaders of sessions, of those whose environment may be read here, that were started with a variable: its value.

    Source: proc(5), /proc/PID/environ, as it was at the last exec.
    """
    begin = f"{variable}=".encode()
    found: dict[int, str] = {}
    for pid in psutil.pids():
        if _session_of(pid) == pid:
            with contextlib.suppress(OSError):
                settings = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                values = [os.fsdecode(one.removeprefix(begin)) for one in settings if one.startswith(begin)]
                if values:
                    found[pid] = values[0]
    return found


def kill_session(session: int) -> None:
    """SIGKILL every process of a session; never of sessions 0 and 1, which are the kernel's and the machine's."""
    for pid in members(session) if session > 1 else ():
        send(pid, signal.SIGKILL)


def send(pid: int, signum: int) -> None:
    """Send a signal to a process that may be gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signum)


def memory(session: int) -> int:
    """Bytes that a session holds, each page shared out among all processes that have it (PSS); 0 if it is gone."""
    held = 0
    for pid in members(session):
        with contextlib.suppress(psutil.Error):
            held += psutil.Process(pid).memory_full_info().pss
    return held


def taken(address: str, ports: Iterable[int]) -> tuple[int, ...]:
    """Ports that cannot be bound at this address now."""
    return tuple(port for port in ports if not _can_bind(address, port))


def _can_bind(address: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As servers do: connections that linger from a run that has just ended do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except (ProcessLookupError, PermissionError):
        return None


def _runs(pid: int) -> bool:
    """A zombie whose other threads have not ended yet still runs: it holds its sockets until they have."""
    stat = _stat(pid)
    return bool(stat) and (stat[0] not in "ZX" or int(stat[17]) > 1)
