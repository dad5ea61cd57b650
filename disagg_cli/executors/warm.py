"""This machine, CPU platform: servers and router forked from one parent that has imported SGLang.

The parent is connector/host_memory/warm_parent.py: the one that this environment names, or the one that
`disagg warm up` has brought up if it is right, or one of this executor's own.
"""

import asyncio
import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from disagg_cli.engine.commands import Command
from disagg_cli.engine.start import SECRET_FLAGS
from disagg_cli.errors import LaunchFailed
from disagg_cli.executors import sessions
from disagg_cli.executors.kept_parent import MODULE, Place, connect, died_importing, misfit, not_ready, peer
from disagg_cli.executors.local import LocalExecutor, environment, handle, inherit
from disagg_cli.executors.protocol import Handle, PlaceLost
from disagg_cli.settings import WARM

SHARED_PARENT = "DISAGG_WARM_PARENT"
"""Environment variable: the socket of a parent that runs already. It is used, right or not, and left running."""

LIMITS = (resource.RLIMIT_NOFILE, resource.RLIMIT_CORE, resource.RLIMIT_MEMLOCK, resource.RLIMIT_NPROC)
"""Resource limits that a server may need, or be kept in by."""

MODULES = ("sglang.launch_server", "sglang_router.launch_router")


@dataclass(slots=True)
class _Forked:
    """A server of the parent's. exit: its code, once it is known."""

    name: str
    exit: int | None = None


class WarmExecutor(LocalExecutor):
    """Forks SGLang servers from a warm parent. The parent kills them if this process disappears.

    home: where a kept parent may be. tell: records, in words, why one is not used.
    """

    def __init__(self, log: Path, *, home: Path | None = None, tell: Callable[[str], None] = lambda _: None) -> None:
        super().__init__()
        self.socket = Path()
        self._log = log
        self._kept = Place.of(home) if home else None
        self._tell = tell
        self._parent: asyncio.subprocess.Process | None = None
        self._parent_pid = 0
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._turn = asyncio.Lock()
        self._forked: dict[int, _Forked] = {}

    async def open(self) -> None:
        """Connect to a parent that runs, or start one. LaunchFailed if none gets ready."""
        if shared := os.environ.get(SHARED_PARENT):
            await self._connect(Path(shared))
        elif not (self._kept and await self._connect_kept(self._kept)):
            await self._start_parent()

    async def start(self, command: Command, log: Path) -> Handle:
        """Start a process: warm if the parent has imported its module in the same environment, else cold."""
        _, _, module, *argv = command.argv
        if SECRET_FLAGS in command.env:  # a forked one is called by all its flags, and the parent is told of them
            self._tell(f"{command.name} starts cold: some of its flags hold secrets")
        if module not in MODULES:
            return await super().start(command, log)
        wanted = {"name": command.name, "module": module, "argv": argv, "env": environment(command), "log": str(log)}
        answer = await self._ask({"start": wanted | circumstances()})
        if differs := answer.get("differs"):
            self._tell(f"{command.name} starts cold: {misfit((), differs)}")
            return await super().start(command, log)
        if error := answer.get("error"):
            raise LaunchFailed(f"{command.name} could not be started: {error}", where=str(log))
        self._forked[answer["pid"]] = _Forked(command.name)
        return handle(command, answer["pid"], log)

    async def poll(self, handle: Handle) -> int | None:
        """Exit code, -N for signal N, None while it runs. PlaceLost if the parent has died, and it with it.

        The parent is asked only after one that has gone: on starved cores its answer may take seconds.
        """
        forked = self._forked.get(handle.pid)
        if forked is None:
            return await super().poll(handle)
        if forked.exit is None and not sessions.same_process(handle.pid, handle.born):
            forked.exit = (await self._ask({"poll": handle.pid}))["exit"]
        return forked.exit

    async def terminate(self, handle: Handle) -> None:
        """Ask the process to end."""
        if handle.pid not in self._forked:
            await super().terminate(handle)
        elif sessions.members(handle.pid):  # not asked of the parent, which may be gone
            sessions.send(handle.pid, signal.SIGTERM)

    async def survivors(self, handle: Handle) -> tuple[int, ...]:
        """Pids of the session that still run."""
        if handle.pid not in self._forked:
            return await super().survivors(handle)
        return sessions.members(handle.pid)

    async def close(self) -> None:
        """Let go of the parent; it ends if it is this executor's own, and with it all servers that are still there."""
        if self._streams:
            self._streams[1].close()
        if self._parent and self._parent.returncode is None:
            assert self._parent.stdin
            self._parent.stdin.close()
            try:
                await asyncio.wait_for(self._parent.wait(), WARM.gone)
            except TimeoutError:
                self._parent.kill()
                await self._parent.wait()

    async def _connect_kept(self, place: Place) -> bool:
        """Connect to the kept parent, and see that it is right. Whether there is one that is."""
        try:
            await self._connect(place.socket)
            answer = await self._ask({"fits": parent_environment()})
        except LaunchFailed:  # none, or one whose time to live has just ended
            return False
        if reason := misfit(answer["changed"], answer["differs"]):
            self._tell(f"the parent that `disagg warm up` brought up is not used: {reason}")
            assert self._streams
            self._streams[1].close()
            return False
        self._tell(f"servers are forked from the warm parent that is up (pid {self._parent_pid})")
        self._log = place.log
        return True

    async def _connect(self, socket: Path) -> None:
        try:
            connection = connect(socket)
        except OSError as error:
            raise LaunchFailed(f"no warm parent answers: {error}", where=str(socket)) from None
        self.socket, self._parent_pid = socket, peer(connection)
        connection.settimeout(0)
        self._streams = await asyncio.open_unix_connection(sock=connection)

    async def _start_parent(self) -> None:
        socket = self._log.with_suffix(".socket")  # beside its log: nobody is left to clear a folder in /tmp away
        with self._log.open("ab") as log:
            self._parent = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                MODULE,
                str(socket),
                env=parent_environment(),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        assert self._parent.stdout
        try:
            async with asyncio.timeout(WARM.ready):
                while line := await self._parent.stdout.readline():
                    if line == b"ready\n":
                        return await self._connect(socket)
                code = await self._parent.wait()
        except TimeoutError:
            raise not_ready(self._log, WARM.ready) from None
        raise died_importing(code, self._log)

    async def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Ask the parent. Whoever is cancelled while it waits leaves no answer behind for the next one to take."""
        return await asyncio.shield(asyncio.ensure_future(self._exchange(request)))

    async def _exchange(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._streams, "open() comes first"
        reader, writer = self._streams
        async with self._turn:
            writer.write(json.dumps(request).encode() + b"\n")
            try:
                async with asyncio.timeout(WARM.answer):
                    line = await reader.readline()
            except TimeoutError:
                writer.close()  # an answer that comes late must not be taken for the next one's
                raise self._lost(f"has not answered for {WARM.answer:.0f} s") from None
            except ConnectionError:
                line = b""
        if not line:
            raise self._lost(await self._how_it_died())
        answer: dict[str, Any] = json.loads(line)
        return answer

    async def _how_it_died(self) -> str:
        if self._parent is None:
            return "has died"
        try:
            code = await asyncio.wait_for(self._parent.wait(), 1)
        except TimeoutError:
            return "has closed its connection"
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"has ended with exit code {code}"

    def _lost(self, how: str) -> PlaceLost:
        names = tuple(forked.name for forked in self._forked.values() if forked.exit is None)
        lost = f"; lost with it, through no fault of theirs: {', '.join(names)}" if names else ""
        return PlaceLost(
            f"the warm parent (pid {self._parent_pid}) {how}{lost}",
            where=str(self._log),
            fix="launch again; with --cold, servers do not hang on a parent",
            processes=names,
            why=f"lost with the warm parent, which {how}",
        )


def parent_environment() -> dict[str, str]:
    """The environment that a parent imports SGLang in, as servers of this process will want it."""
    from disagg_cli.connector.host_memory import mode  # only here: GPU platforms import nothing of it

    return inherit(mode.IMPORT_TIME_ENV)


def circumstances() -> dict[str, Any]:
    """What a process that we start ourselves has from us, besides its environment."""
    umask = os.umask(0o077)
    os.umask(umask)
    limits = {number: resource.getrlimit(number) for number in LIMITS}
    return {
        "folder": str(Path.cwd()),
        "umask": umask,
        "cores": sorted(os.sched_getaffinity(0)),
        "nice": os.nice(0),
        "limits": [[number, *limit] for number, limit in limits.items()],
    }
