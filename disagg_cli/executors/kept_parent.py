"""A warm parent that is kept between runs, for all launches of this home: brought up, looked at, ended.

There is one for each installation of SGLang, in $DISAGG_HOME/warm/. No file says which process it is: whoever listens
at the socket does, and the kernel knows who that is. So nothing can be stale but the socket, which then nobody answers.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import select
import signal
import socket
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from disagg_cli.engine.installed import version_of
from disagg_cli.errors import LaunchFailed, PlanRefused, UsageError
from disagg_cli.executors import sessions
from disagg_cli.settings import WARM

MODULE = "disagg_cli.connector.host_memory.warm_parent"


@dataclass(frozen=True, slots=True)
class Place:
    """Where the kept parent of this installation is, if there is one: a folder that only its owner may enter."""

    folder: Path

    @classmethod
    def of(cls, home: Path) -> "Place":
        """The place in this home. Two virtual environments have two."""
        return cls(home / "warm" / hashlib.sha256(sys.prefix.encode()).hexdigest()[:12])

    @property
    def socket(self) -> Path:
        """Where it listens."""
        return self.folder / "socket"

    @property
    def log(self) -> Path:
        """What it has to say, and what SGLang says while it is imported."""
        return self.folder / "parent.log"

    def make(self) -> None:
        """Make the folder. UsageError if others can enter it: they could have servers started."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"cannot make {self.folder}: {error.strerror}") from None
        found = self.folder.stat()
        if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise UsageError(f"{self.folder} is open to others", fix="chmod 700 it, or set DISAGG_HOME elsewhere")


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """A kept parent as it says itself. Times in seconds since the epoch; idle_since is None while it serves."""

    pid: int
    sglang: str | None
    import_s: float
    since: float
    idle_since: float | None
    ttl_s: float
    changed: tuple[str, ...]
    servers: tuple[Mapping[str, Any], ...]

    @property
    def names(self) -> str:
        """Its servers, for a sentence."""
        return ", ".join(f"{server['name']} ({server['pid']})" for server in self.servers)


def connect(path: Path) -> socket.socket:
    """Connect to a Unix socket, however long its path is: the kernel takes 107 bytes. OSError if nobody answers."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(WARM.answer)
        connection.connect(f"/proc/self/fd/{folder}/{path.name}")
    except BaseException:
        connection.close()
        raise
    finally:
        os.close(folder)
    return connection


def misfit(changed: Sequence[str], differs: Sequence[str]) -> str:
    """Why a parent is not right for a server, in words; empty if it is."""
    reasons = []
    if changed:
        reasons.append(f"installed anew since it was imported: {', '.join(changed)}")
    if differs:
        reasons.append(f"read while SGLang is imported, and set otherwise now: {', '.join(differs)}")
    return "; ".join(reasons)


def look(place: Place) -> Kept | None:
    """The parent that is up, or None. LaunchFailed if it is there and does not answer."""
    answer = _ask(place, {"look": True})
    if answer is None:
        return None
    known = {name: answer[name] for name in ("pid", "sglang", "import_s", "since", "idle_since", "ttl_s")}
    return Kept(**known, changed=tuple(answer["changed"]), servers=tuple(answer["servers"]))


def bring_up(
    place: Place, *, ttl_s: float, environment: Mapping[str, str], say: Callable[[str], None]
) -> tuple[Kept, bool]:
    """See that a parent which fits this environment is up. Return it, and whether it is a new one.

    UsageError if one is up that does not fit and still has servers. PlanRefused if there is nothing to import.
    """
    if missing := [package for package in ("sglang", "nixl") if version_of(package) is None]:
        raise PlanRefused(f"not installed here: {', '.join(missing)}", fix="pip install 'disagg-cli[engine]'")
    place.make()
    with _lock(place, say):
        if found := look(place):
            fits = _ask(place, {"fits": dict(environment)}) or {"changed": [], "differs": []}
            reason = misfit(fits["changed"], fits["differs"])
            if not reason:
                _ask(place, {"ttl": ttl_s})
                return look(place) or found, False
            if found.servers:
                raise UsageError(
                    f"a warm parent is up that is not right ({reason}), and it serves {found.names}",
                    fix="stop what it serves, or: disagg warm down --force",
                )
            say(f"the warm parent that was up ends: {reason}")
            _end(place, found.pid)
        say("importing SGLang once")
        _start(place, ttl_s, environment)
        started = look(place)
    if started is None:
        raise LaunchFailed("the warm parent died as soon as it was ready", where=str(place.log))
    return started, True


def take_down(place: Place, *, force: bool, say: Callable[[str], None]) -> Kept | None:
    """End the parent. Return what it was, or None if there was none.

    UsageError names the servers that it still has, unless `force` ends them, too.
    """
    if not place.folder.is_dir():
        return None
    with _lock(place, say):
        try:
            found = look(place)
        except LaunchFailed:
            if not force:
                raise
            return _kill(place, say)
        if found is None:
            return None
        if found.servers and not force:
            raise UsageError(
                f"the warm parent still serves {found.names}",
                fix="stop them first (`disagg stop`), or end them with it: disagg warm down --force",
            )
        _end(place, found.pid)
        return found


def _kill(place: Place, say: Callable[[str], None]) -> Kept | None:
    """Kill a parent that does not answer. Its servers die with it, and what they were it can no longer tell."""
    pid = _listening(place)
    if pid is None:
        return None
    say(f"the warm parent (pid {pid}) does not answer, and is killed")
    sessions.kill_session(pid)
    place.socket.unlink(missing_ok=True)
    return Kept(pid=pid, sglang=None, import_s=0, since=0, idle_since=None, ttl_s=0, changed=(), servers=())


def _start(place: Place, ttl_s: float, environment: Mapping[str, str]) -> None:
    """Start a parent in a session of its own and wait until it is ready."""
    with place.log.open("wb") as log:
        parent = subprocess.Popen(
            [sys.executable, "-m", MODULE, str(place.socket), str(ttl_s)],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
    assert parent.stdout
    try:
        said = _line_within(parent.stdout.fileno(), WARM.ready)
    except BaseException:
        parent.kill()
        raise
    finally:
        parent.stdout.close()
    if said is None:
        parent.kill()
        parent.wait()
        raise not_ready(place.log, WARM.ready)
    if not said:
        raise died_importing(parent.wait(), place.log)


def not_ready(log: Path, seconds: float) -> LaunchFailed:
    """What to say of a parent that takes too long."""
    return LaunchFailed(f"the warm parent was not ready after {seconds:.0f} s", where=str(log))


def died_importing(code: int, log: Path) -> LaunchFailed:
    """What to say of a parent that died before it was ready."""
    return LaunchFailed(
        f"the warm parent died while it imported SGLang (exit code {code})",
        where=str(log),
        fix="try `launch --cold`, which starts each server by its ordinary command line",
    )


def _line_within(pipe: int, seconds: float) -> bool | None:
    """Whether `ready` was written into a pipe; False if the pipe has closed, None if neither came in time."""
    deadline, said = time.monotonic() + seconds, b""
    while (left := deadline - time.monotonic()) > 0:
        if not select.select([pipe], [], [], left)[0]:
            break
        if not (data := os.read(pipe, 4096)):
            return False
        said += data
        if b"ready\n" in said:
            return True
    return None


def _end(place: Place, pid: int) -> None:
    """Have the parent end, and make sure that it has."""
    born = sessions.born(pid)
    with contextlib.suppress(LaunchFailed):
        _ask(place, {"end": True})
    deadline = time.monotonic() + WARM.gone
    while sessions.same_process(pid, born):
        if time.monotonic() > deadline:
            sessions.send(pid, signal.SIGKILL)
            deadline = float("inf")
        time.sleep(0.02)


def _listening(place: Place) -> int | None:
    """The pid of the process that listens at the socket, as the kernel knows it."""
    try:
        with connect(place.socket) as connection:
            return peer(connection)
    except OSError:
        return None


def peer(connection: socket.socket) -> int:
    """The pid of the process at the other end."""
    size = struct.calcsize("3i")
    pid: int = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))[0]
    return pid


def _ask(place: Place, request: Mapping[str, Any]) -> dict[str, Any] | None:
    """One question, one answer; None if nobody is there to be asked. LaunchFailed if there is no answer in time."""
    try:
        connection = connect(place.socket)
    except OSError:
        return None
    with connection, connection.makefile("rwb") as stream:
        try:
            stream.write(json.dumps(request).encode() + b"\n")
            stream.flush()
            line = stream.readline()
        except TimeoutError:
            raise LaunchFailed(
                f"the warm parent (pid {peer(connection)}) has not answered for {WARM.answer:.0f} s",
                where=str(place.log),
                fix="disagg warm down --force",
            ) from None
        except OSError:
            return None
    answer: dict[str, Any] | None = json.loads(line) if line else None
    return answer


@contextlib.contextmanager
def _lock(place: Place, say: Callable[[str], None]) -> Iterator[None]:
    """Start or end parents one at a time."""
    deadline, told = time.monotonic() + WARM.ready + WARM.gone, False
    with (place.folder / "lock").open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise LaunchFailed("another `disagg warm` has not ended", where=str(place.folder)) from None
            if not told:
                say("waiting for another `disagg warm` of this home")
                told = True
            time.sleep(0.05)
        yield
