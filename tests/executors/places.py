"""The places that the contract suite runs in, and programs to run there."""

import asyncio
import contextlib
import fcntl
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from allocation import host as node_of
from slurm_lab import Lab
from ssh_lab import HOSTS, SshLab

from disagg_cli.connector.host_memory import mode
from disagg_cli.engine.commands import Command
from disagg_cli.executors.local import LocalExecutor
from disagg_cli.executors.protocol import Executor, Handle, Site
from disagg_cli.executors.slurm.steps import SlurmExecutor
from disagg_cli.executors.ssh import SshExecutor
from disagg_cli.executors.warm import WarmExecutor
from disagg_cli.settings import Timeouts
from disagg_cli.topology.deployment import Host

HERE = Host(name="localhost", address="127.0.0.1", gpus=0, local=True)

FOREVER = "import time; print('ready', flush=True); time.sleep(60)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {FOREVER}"
PARENT = f"import subprocess; print(subprocess.Popen(['sleep', '60']).pid); {FOREVER}"
LEAVES_A_CHILD = "import subprocess; print(subprocess.Popen(['sleep', '60']).pid)"


def child_with(lock: Path) -> str:
    """Code that takes a lock and shares it with a child: it is taken while one of them runs, wherever that is."""
    take = f"lock = os.open('{lock}', os.O_CREAT | os.O_RDWR); fcntl.flock(lock, fcntl.LOCK_EX)"
    return f"import fcntl, os, subprocess; {take}; subprocess.Popen(['sleep', '60'], pass_fds=[lock]); "


def taken(lock: Path) -> bool:
    """Whether anybody has it."""
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def hold_segment(name: str) -> str:
    """Code that has something in /dev/shm as SGLang has, and does not unlink it."""
    return f"import mmap; f = open('/dev/shm/sgl_shm_{name}', 'w+b'); f.truncate(8192); m = mmap.mmap(f.fileno(), 8192)"


def segments_of(name: str) -> list[Path]:
    """What is there of it."""
    return list(Path("/dev/shm").glob(f"sgl_shm_{name}"))


def cold(code: str, **env: str) -> Command:
    """A command that runs Python code in a process of its own."""
    return Command(name="program", host=HERE, argv=(sys.executable, "-S", "-c", code), env=env)


def warm(code: str, **env: str) -> Command:
    """A command that the tiny parent forks."""
    argv = (sys.executable, "-m", "sglang.launch_server", code)
    return Command(name="program", host=HERE, argv=argv, env=mode.IMPORT_TIME_ENV | env)


@dataclass
class Place:
    """An executor, the programs that it runs, and what has been started. again: makes another executor like it."""

    executor: Executor
    program: Callable[..., Command]
    folder: Path
    again: Callable[[], Executor]
    host: Host = HERE
    started: list[Handle] = field(default_factory=list)

    async def start(self, code: str, **env: str) -> Handle:
        """Start a program with a log of its own."""
        log = self.folder / f"{len(self.started)}.log"
        handle = await self.executor.start(self.program(code, **env), log)
        self.started.append(handle)
        return handle

    def said(self, handle: Handle) -> str:
        """What a program has said so far; srun adds lines of its own to that."""
        lines = handle.log.read_text().splitlines(keepends=True) if handle.log.exists() else []
        return "".join(line for line in lines if not line.startswith("srun: "))

    async def gone(self, handle: Handle, executor: Executor | None = None) -> None:
        """Wait until nothing of a session is left, in this executor's eyes or another's."""
        async with asyncio.timeout(60):
            while await (executor or self.executor).survivors(handle):  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def ended(self, handle: Handle) -> int:
        """The exit code, once there is one."""
        async with asyncio.timeout(60):
            while (code := await self.executor.poll(handle)) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            return code


@contextlib.asynccontextmanager
async def local_place(folder: Path) -> AsyncIterator[Place]:
    """This machine, each process cold."""
    async with _place(LocalExecutor, cold, folder) as place:
        yield place


@contextlib.asynccontextmanager
async def warm_place(folder: Path) -> AsyncIterator[Place]:
    """This machine, forked from the parent that DISAGG_WARM_PARENT names."""
    async with _place(lambda: WarmExecutor(folder / "parent.log"), warm, folder) as place:
        yield place


@contextlib.asynccontextmanager
async def ssh_place(
    folder: Path, lab: SshLab, *, lease: float = 60.0, tell: Callable[[str], None] = lambda _: None
) -> AsyncIterator[Place]:
    """A host of the lab."""
    host = Host(name="h1", address=HOSTS["h1"], gpus=0, local=False)
    settings = {"config": str(lab.config), "python": sys.executable}
    site = Site(settings=settings, run=folder.name, logs=folder, timeouts=Timeouts(lease=lease), tell=tell)

    def remote(code: str, **env: str) -> Command:
        return replace(cold(code, **env), host=host)

    async with _place(lambda: SshExecutor(site), remote, folder, host) as place:
        yield place


@contextlib.asynccontextmanager
async def slurm_place(folder: Path, lab: Lab) -> AsyncIterator[Place]:
    """A node of the allocation that this process is in."""
    node = node_of(lab)

    def step(code: str, **env: str) -> Command:
        return replace(cold(code, **env), host=node)

    async with _place(lambda: SlurmExecutor(Site(run=folder.name, logs=folder)), step, folder, node) as place:
        yield place


@contextlib.asynccontextmanager
async def _place(
    make: Callable[[], Executor], program: Callable[..., Command], folder: Path, host: Host = HERE
) -> AsyncIterator[Place]:
    place = Place(make(), program, folder, make, host)
    await place.executor.open()
    try:
        yield place
    finally:
        for ending in (place.executor.kill, place.executor.collect):
            await asyncio.gather(*map(ending, place.started), return_exceptions=True)
        await place.executor.close()
