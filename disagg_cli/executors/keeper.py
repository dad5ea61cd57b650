"""What outlives the connection of the ssh executor: it has started one worker, and writes down how that ended.

Standard library only, Python 3.8 or later; see helper.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from disagg_cli.executors import procfs
else:
    procfs = sys.modules["procfs"]

GRACE_S = 5.0


class Keeper:
    """Starts one worker, sees it end, and ends it itself once nobody has asked after it for `lease` seconds."""

    def __init__(self, folder: str, argv: list[str], env: dict[str, str], lease: float) -> None:
        self.folder = Path(folder)
        self.argv = argv
        self.env = env
        self.lease = lease
        self.touched = procfs.touched(self.folder.parent / "touch")
        self.heard = time.monotonic()

    def run(self) -> None:
        """Say on the output whether the worker exists, let go of it, and keep."""
        try:
            worker = self._start()
        except OSError as error:
            sys.stdout.write(str(error))
            sys.stdout.flush()
            return
        procfs.write(self.folder / "keeper", json.dumps(procfs.identity(os.getpid())))
        procfs.write(self.folder / "leader", json.dumps(procfs.identity(worker.pid)))
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
        sys.stdout.write("started")
        sys.stdout.flush()
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nothing, descriptor)
        self._keep(worker)

    def _start(self) -> subprocess.Popen[bytes]:
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                self.argv,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _keep(self, worker: subprocess.Popen[bytes]) -> None:
        while worker.poll() is None:
            signal.sigtimedwait([signal.SIGCHLD], 1.0)
            self._end_if_forgotten()
        procfs.write(self.folder / "exit", str(worker.returncode))
        while procfs.members(self.folder):
            time.sleep(0.2)
            self._end_if_forgotten()

    def _end_if_forgotten(self) -> None:
        if (touched := procfs.touched(self.folder.parent / "touch")) != self.touched:
            self.touched, self.heard = touched, time.monotonic()
        if time.monotonic() - self.heard < self.lease:
            return
        with contextlib.suppress(OSError), (self.folder / "log").open("a") as log:
            log.write(f"disagg: ended, because nobody has asked after it for {self.lease:.0f} s\n")
        self.lease += GRACE_S
        for pid in procfs.members(self.folder):
            procfs.send(pid, signal.SIGTERM)
        deadline = time.monotonic() + GRACE_S
        while procfs.members(self.folder) and time.monotonic() < deadline:
            time.sleep(0.1)
        for pid in procfs.members(self.folder):
            procfs.send(pid, signal.SIGKILL)
