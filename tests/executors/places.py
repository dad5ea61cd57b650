"""The places that the contract suite runs in, and programs to run there."""

import contextlib
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

from disagg_cli.engine.commands import Command
from disagg_cli.executors import sessions
from disagg_cli.executors.local import LocalExecutor
from disagg_cli.executors.protocol import Executor, Handle
from disagg_cli.executors.warm import WarmExecutor
from disagg_cli.topology.deployment import Host

HERE = Host(name="localhost", address="127.0.0.1", gpus=0, local=True)

FOREVER = "import time; print('ready', flush=True); time.sleep(60)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {FOREVER}"
PARENT = f"import subprocess; print(subprocess.Popen(['sleep', '60']).pid); {FOREVER}"
LEAVES_A_CHILD = "import subprocess; print(subprocess.Popen(['sleep', '60']).pid)"


def cold(code: str, **env: str) -> Command:
    """A command that runs Python code in a process of its own."""
    return Command(name="program", host=HERE, argv=(sys.executable, "-S", "-c", code), env=env)


def warm(code: str, **env: str) -> Command:
    """A command that the tiny parent forks."""
    return Command(name="program", host=HERE, argv=(sys.executable, "-m", "sglang.launch_server", code), env=env)


@dataclass
class Place:
    """An executor, the programs that it runs, and what has been started."""

    executor: Executor
    program: Callable[..., Command]
    folder: Path
    started: list[Handle] = field(default_factory=list)

    async def start(self, code: str, **env: str) -> Handle:
        """Start a program with a log of its own."""
        log = self.folder / f"{len(self.started)}.log"
        handle = await self.executor.start(self.program(code, **env), log)
        self.started.append(handle)
        return handle


@contextlib.asynccontextmanager
async def local_place(folder: Path) -> AsyncIterator[Place]:
    """This machine, each process cold."""
    with_local = Place(LocalExecutor(), cold, folder)
    try:
        yield with_local
    finally:
        await _clean(with_local)


@contextlib.asynccontextmanager
async def warm_place(folder: Path) -> AsyncIterator[Place]:
    """This machine, forked from the parent that DISAGG_WARM_PARENT names."""
    executor = WarmExecutor(folder / "parent.log")
    await executor.open()
    forked = Place(executor, warm, folder)
    try:
        yield forked
    finally:
        await _clean(forked)


async def _clean(place: Place) -> None:
    for handle in place.started:
        sessions.kill_session(handle.pid)
    await place.executor.close()
