"""This machine, CPU platform: servers and router forked from one parent that has imported SGLang.

The parent is connector/host_memory/warm_parent.py.
"""

import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from disagg_cli.engine.commands import Command
from disagg_cli.errors import LaunchFailed
from disagg_cli.executors import sessions
from disagg_cli.executors.local import LocalExecutor, environment, handle
from disagg_cli.executors.protocol import Handle

SHARED_PARENT = "DISAGG_WARM_PARENT"
"""Environment variable: the socket of a parent that runs already. It is used and left running."""

MODULES = ("sglang.launch_server", "sglang_router.launch_router")
READY_S = 180.0
ANSWER_S = 20.0


class WarmExecutor(LocalExecutor):
    """Forks SGLang servers from a warm parent. The parent kills them if this process disappears."""

    def __init__(self, log: Path) -> None:
        super().__init__()
        self._folder: Path | None = None
        self._socket = Path()
        self._log = log
        self._parent: asyncio.subprocess.Process | None = None
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._turn = asyncio.Lock()
        self._forked: dict[int, int | None] = {}

    @property
    def socket(self) -> Path:
        """Where the parent listens, once it is open."""
        return self._socket

    async def open(self) -> None:
        """Start the parent, or find the shared one, and connect. LaunchFailed if it does not get ready."""
        if shared := os.environ.get(SHARED_PARENT):
            self._socket = Path(shared)
        else:
            self._folder = Path(tempfile.mkdtemp(prefix="disagg-"))  # a Unix socket's path must be short
            self._socket = self._folder / "s"
            await self._start_parent()
        try:
            self._streams = await asyncio.open_unix_connection(self._socket)
        except OSError as error:
            raise LaunchFailed(f"no warm parent answers: {error}", where=str(self._socket)) from None

    async def start(self, command: Command, log: Path) -> Handle:
        """Start a process: warm if the parent has imported its module, else cold."""
        _, _, module, *argv = command.argv
        if module not in MODULES:
            return await super().start(command, log)
        request = {"module": module, "argv": argv, "env": environment(command), "log": str(log)}
        pid = (await self._ask({"start": request}))["pid"]
        self._forked[pid] = None
        return handle(command, pid, log)

    async def poll(self, handle: Handle) -> int | None:
        """Exit code, -N for signal N, None while it runs."""
        if handle.pid not in self._forked:
            return await super().poll(handle)
        if self._forked[handle.pid] is None:
            self._forked[handle.pid] = (await self._ask({"poll": handle.pid}))["exit"]
        return self._forked[handle.pid]

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
        """Let go of the parent; it ends unless it is shared, and with it all servers that are still there."""
        if self._streams:
            self._streams[1].close()
        if self._parent and self._parent.returncode is None:
            assert self._parent.stdin
            self._parent.stdin.close()
            try:
                await asyncio.wait_for(self._parent.wait(), 3)
            except TimeoutError:
                self._parent.kill()
                await self._parent.wait()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    async def _start_parent(self) -> None:
        from disagg_cli.connector.host_memory import mode  # only here: GPU platforms import nothing of it

        settings = {**os.environ, **mode.IMPORT_TIME_ENV}
        with self._log.open("ab") as log:
            self._parent = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "disagg_cli.connector.host_memory.warm_parent",
                str(self._socket),
                env=settings,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        assert self._parent.stdout
        try:
            async with asyncio.timeout(READY_S):
                while line := await self._parent.stdout.readline():
                    if line == b"ready\n":
                        return
                code = await self._parent.wait()
        except TimeoutError:
            raise LaunchFailed(f"the warm parent was not ready after {READY_S:.0f} s", where=str(self._log)) from None
        raise LaunchFailed(
            f"the warm parent died while it imported SGLang (exit code {code})",
            where=str(self._log),
            fix="try --cold, which starts each server by its ordinary command line",
        )

    async def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Ask the parent. Whoever is cancelled while it waits leaves no answer behind for the next one to take."""
        return await asyncio.shield(asyncio.ensure_future(self._exchange(request)))

    async def _exchange(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._streams, "open() comes first"
        reader, writer = self._streams
        async with self._turn:
            writer.write(json.dumps(request).encode() + b"\n")
            try:
                async with asyncio.timeout(ANSWER_S):
                    line = await reader.readline()
            except (TimeoutError, ConnectionError):
                line = b""
                writer.close()  # an answer that comes late must not be taken for the next one's
        if not line:
            raise LaunchFailed("the warm parent no longer answers", where=str(self._log))
        answer: dict[str, Any] = json.loads(line)
        return answer
