"""Ports kept from another launch between the check that they are free and the moment when a server binds them."""

import fcntl
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from disagg_cli.errors import PlanRefused


@contextmanager
def reserved(ports: Iterable[int | str]) -> Iterator[None]:
    """Lock these ports against other launches of this user while the body runs, or until the process ends.

    A port of another host is HOST:PORT. PlanRefused if another launch has one of them. A lock says nothing of other
    programs; the check does.
    """
    folder = _own(Path(tempfile.gettempdir()) / f"disagg-ports-{os.getuid()}")
    with ExitStack() as locks:
        for port in sorted(set(map(str, ports))):
            locks.callback(_release, folder / port, _lock(folder / port, port))
        yield


def _own(folder: Path) -> Path:
    """This folder, made where it is missing. Everybody knows its name: PlanRefused if it is not ours alone."""
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise PlanRefused(
            f"{folder} is not a folder of this user alone, so ports cannot be kept from other launches there",
            where=str(folder),
            fix="remove it, or set TMPDIR to a folder of yours for every launch",
        )
    return folder


def _release(file: Path, descriptor: int) -> None:
    """Leave nothing behind: each job of Slurm has names of its own."""
    if os.fstat(descriptor).st_nlink:  # else it is somebody else's by now: /tmp is cleaned of what is old
        file.unlink(missing_ok=True)
    os.close(descriptor)


def _lock(file: Path, port: str) -> int:
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise PlanRefused(
            f"another launch is starting, or serving, on port {port}",
            fix="stop it (`disagg status` shows the last run), or change `ports` and `router.port`",
        ) from None
    if os.fstat(descriptor).st_nlink == 0:  # its holder has taken it away since it was opened
        os.close(descriptor)
        return _lock(file, port)
    return descriptor
