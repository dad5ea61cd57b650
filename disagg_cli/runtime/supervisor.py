"""The processes of a run: start them, notice when one dies, end them all."""

import asyncio
import contextlib
import re
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import aiohttp

from disagg_cli.engine.commands import Command
from disagg_cli.errors import LaunchFailed
from disagg_cli.executors.protocol import Executor, Handle
from disagg_cli.runtime.state import Recorder
from disagg_cli.settings import Timeouts

LOADING_MARKS = (b"Init torch distributed begin", b"Load weight begin")
CRASH_MARK = re.compile(rb"Subprocess \S+ \(pid=\d+\) crashed[^\n]{0,60}|SIGQUIT received")
"""Lines of SGLang's log (0.5.23: utils/watchdog.py; managers/tokenizer_manager.py, where another rank notices)."""


class Supervisor:
    """Owns the processes of one run, from the first start to the last one gone."""

    def __init__(self, executor: Executor, recorder: Recorder, timeouts: Timeouts) -> None:
        self.executor = executor
        self.recorder = recorder
        self.timeouts = timeouts
        self.handles: dict[str, Handle] = {}

    async def start(self, commands: Sequence[Command]) -> None:
        """Start processes side by side."""
        for command in commands:
            handle = await self.executor.start(command, self.recorder.directory.log(command.name))
            self.handles[command.name] = handle
            self.recorder.started(handle)

    async def watch(self) -> None:
        """Never return; raise LaunchFailed as soon as a process of the run has ended."""
        while True:
            for handle in list(self.handles.values()):
                code = await self.executor.poll(handle)
                how = ending(code) if code is not None else _crashed_child(handle.log)
                if how:
                    self.recorder.process_phase(handle.name, "failed", how)
                    raise LaunchFailed(
                        f"{handle.name} died: {how}\n{indented(tail(handle.log))}", where=str(handle.log)
                    )
            await asyncio.sleep(self.timeouts.poll)

    async def healthy(self, urls: Mapping[str, str]) -> None:
        """Wait until every server, name -> URL, answers /health. LaunchFailed names those that do not in time."""
        waiting = dict(urls)
        limit = aiohttp.ClientTimeout(total=self.timeouts.health_request)
        deadline = time.monotonic() + self.timeouts.health
        async with aiohttp.ClientSession(timeout=limit) as session:
            while waiting:
                if time.monotonic() > deadline:
                    raise self._not_healthy(list(waiting))
                self.recorder.state.waiting_for = f"/health of {', '.join(waiting)}"
                answers = await asyncio.gather(*(_answers(session, f"{url}/health") for url in waiting.values()))
                for name, answer in zip(list(waiting), answers, strict=True):
                    if answer:
                        del waiting[name]
                        self.recorder.process_phase(name, "healthy")
                    elif any(mark in _read(self.handles[name].log) for mark in LOADING_MARKS):
                        self.recorder.process_phase(name, "loading")
                await asyncio.sleep(self.timeouts.poll)

    async def stop(self, hurry: asyncio.Event) -> list[str]:
        """End every process: ask, wait the grace time or until `hurry`, then kill sessions. Return who is left."""
        handles = list(self.handles.values())
        # One that cannot be asked is killed below, like one that does not listen.
        await asyncio.gather(*(self.executor.terminate(handle) for handle in handles), return_exceptions=True)
        deadline = time.monotonic() + self.timeouts.grace
        while time.monotonic() < deadline and not hurry.is_set() and await self._left(handles):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(hurry.wait(), self.timeouts.poll)
        deadline = time.monotonic() + self.timeouts.gone
        while left := await self._left(handles):
            await asyncio.gather(*(self.executor.kill(handle) for handle in left), return_exceptions=True)
            if time.monotonic() > deadline:
                return [handle.name for handle in left]
            await asyncio.sleep(self.timeouts.poll)
        for handle in handles:
            if self.recorder.state.processes[handle.name].phase != "failed":
                self.recorder.process_phase(handle.name, "stopped")
        return []

    async def _left(self, handles: Sequence[Handle]) -> list[Handle]:
        return [handle for handle in handles if await self.executor.survivors(handle)]

    def _not_healthy(self, names: list[str]) -> LaunchFailed:
        logs = "\n".join(f"{name}, last lines:\n{indented(tail(self.handles[name].log))}" for name in names)
        return LaunchFailed(
            f"not healthy after {self.timeouts.health:.0f} s: {', '.join(names)}\n{logs}",
            where=", ".join(str(self.handles[name].log) for name in names),
        )


def _crashed_child(log: Path) -> str | None:
    """What SGLang says of a rank or a detokenizer that has died; it takes up to a minute more to die of it itself."""
    found = CRASH_MARK.findall(_read(log, most=8192))
    return f"one of its ranks failed ({found[-1].decode(errors='replace')})" if found else None


def ending(code: int) -> str:
    """How a process ended, in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def tail(log: Path, lines: int = 8) -> str:
    """The last lines of a log, each cut to what fits a screen; SGLang prints its whole argument list as one line."""
    text = _read(log).decode(errors="replace")
    kept = [line[:400] for line in text.splitlines() if line.strip()][-lines:]
    return "\n".join(kept) or "(the log is empty)"


def indented(text: str) -> str:
    """Set a quotation off."""
    return "\n".join(f"  | {line}" for line in text.splitlines())


def _read(log: Path, most: int = 65536) -> bytes:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - most))
            return file.read()
    except OSError:
        return b""


async def _answers(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url) as response:
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError, OSError):
        return False
