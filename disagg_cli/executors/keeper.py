"""What outlives the connection of the ssh executor: it has started one worker, and keeps how that ended.

It survives a full disk: what it cannot write it keeps, and says by its own name (proc(5), /proc/PID/comm).

Standard library only, Python 3.8 or later; see helper.py.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from disagg_cli.executors import logfile, procfs, segments
else:
    logfile, procfs, segments = (sys.modules.get(name) for name in ("logfile", "procfs", "segments"))

GRACE_S = 5.0
LOOK_S = 1.0
RARELY_S = 60.0
COMM = Path("/proc/self/comm")


class Keeper:
    """Starts one worker, sees it end, and ends it itself once nobody has asked after it for `lease` seconds."""

    def __init__(self, folder: str, argv: list[str], env: dict[str, str], lease: float) -> None:
        self.folder = Path(folder)
        self.argv = argv
        self.env = env
        self.lease = lease
        self.touched = procfs.touched(self.folder.parent / "touch")
        self.heard = time.monotonic()
        self.segments: set[str] = set()
        self.begun, self.next_look = time.monotonic(), 0.0

    def run(self) -> None:
        """Say on the output whether the worker exists, let go of it, and keep."""
        try:
            with self._claim():
                worker = self._start()
        except (OSError, ValueError) as error:
            _say(str(error))
            return
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
        _say("started")
        if worker:
            self._keep(worker)

    @contextlib.contextmanager
    def _claim(self) -> Iterator[None]:
        """Be the only keeper on this host that starts a worker of the run now."""
        with (self.folder.parent / "claim").open("a") as claim:
            fcntl.flock(claim, fcntl.LOCK_EX)
            yield

    def _start(self) -> subprocess.Popen[bytes] | None:
        """The worker; None if another keeper has it: disagg asks again where an answer was lost with its connection."""
        if (self.folder / "leader").exists():
            return None
        self.folder.mkdir(mode=0o700, exist_ok=True)
        worker = None
        try:
            procfs.write(self.folder / "keeper", json.dumps(procfs.identity(os.getpid())))
            with (self.folder / "log").open("ab") as log:
                worker = subprocess.Popen(
                    self.argv,
                    env=self.env,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            procfs.write(self.folder / "leader", json.dumps(procfs.identity(worker.pid)))
        except (OSError, ValueError):
            if worker:  # it cannot be on record, so it must not be
                procfs.send(-worker.pid, signal.SIGKILL)
                worker.wait()
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        return worker

    def _keep(self, worker: subprocess.Popen[bytes]) -> None:
        while worker.poll() is None:
            self._look_after()
            self._end_if_forgotten()
            signal.sigtimedwait([signal.SIGCHLD], LOOK_S)
        with contextlib.suppress(OSError):
            COMM.write_text(f"{procfs.ENDED}{worker.returncode}")
        written = self._written(worker.returncode)
        while procfs.members(self.folder) or not written:
            time.sleep(0.2)
            written = written or self._written(worker.returncode)
            written = self._end_if_forgotten() or written
        segments.remove(self.segments.union(procfs.text(self.folder / "segments").split()))

    def _look_after(self) -> None:
        """Keep the log within bounds, and note what the worker has in /dev/shm: often at first, later now and then."""
        logfile.trim(self.folder / "log", fetched=int(procfs.text(self.folder / "sent") or 0))
        age = time.monotonic() - self.begun
        if age >= self.next_look:
            self.next_look = age + min(age, RARELY_S)
            self.segments |= segments.mapped(procfs.members(self.folder))

    def _written(self, code: int) -> bool:
        """Whether the exit code is on disk, or is wanted no more."""
        try:
            procfs.write(self.folder / "exit", str(code))
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    def _end_if_forgotten(self) -> bool:
        """End what is left once nobody has asked after it for too long. Whether that is so."""
        if (touched := procfs.touched(self.folder.parent / "touch")) != self.touched:
            self.touched, self.heard = touched, time.monotonic()
        if time.monotonic() - self.heard < self.lease:
            return False
        with contextlib.suppress(OSError), (self.folder / "log").open("a") as log:
            log.write(f"disagg: ended, because nobody has asked after it for {self.lease:.0f} s\n")
        self.lease += GRACE_S
        self.segments |= segments.mapped(procfs.members(self.folder))
        for pid in procfs.members(self.folder):
            procfs.send(pid, signal.SIGTERM)
        deadline = time.monotonic() + GRACE_S
        while procfs.members(self.folder) and time.monotonic() < deadline:
            time.sleep(0.1)
        for pid in procfs.members(self.folder):
            procfs.send(pid, signal.SIGKILL)
        return True


def _say(text: str) -> None:
    """Tell the helper, which may have gone with its connection, and let go of what it gave us."""
    with contextlib.suppress(OSError):
        os.write(1, text.encode())
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
