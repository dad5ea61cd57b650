"""The processes of a run: start them, notice when one dies and say why, end them all."""

import asyncio
import contextlib
import math
import time
from collections import deque
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import aiohttp

from disagg_cli import secrets
from disagg_cli.engine.commands import Command
from disagg_cli.errors import LaunchFailed
from disagg_cli.executors.protocol import Executor, Handle, PlaceLost
from disagg_cli.http import UNTIMED
from disagg_cli.runtime import disk, kernel, logs, shared_memory
from disagg_cli.runtime.crash import Crash, Evidence, cause_of, ending
from disagg_cli.runtime.state import Recorder
from disagg_cli.settings import Timeouts

LINES = 8
HOUSEKEEPING_S = 1.0
"""Between two looks at the disk and the sizes of logs."""
KILL_AGAIN_S = 1.0
"""Between two SIGKILLs for the same session: it may have had a child in between, and another host may have lost one."""
RUNS_ON = "still running after SIGKILL"
T = TypeVar("T")
RECENT = 5
"""Looks. What the OOM killer did before these has nothing to do with a death now."""


class ProcessDied(LaunchFailed):
    """A process of the run has ended by itself."""

    def __init__(self, crash: Crash) -> None:
        super().__init__(crash.text(), where=crash.log, fix=crash.fix, details={"crash": crash.document()})
        self.crash = crash


@dataclass(slots=True)
class _Owned:
    """A process that has been started, and its log.

    released: that it ends, or has ended, is known and no news.
    """

    command: Command
    handle: Handle
    log: logs.Log
    released: bool = False


class Supervisor:
    """Owns the processes of one run, from the first start to the last one gone."""

    def __init__(self, executor: Executor, recorder: Recorder, timeouts: Timeouts) -> None:
        self.executor = executor
        self.recorder = recorder
        self.timeouts = timeouts
        self._owned: dict[str, _Owned] = {}
        self._oom_kills = deque([kernel.oom_kills()], maxlen=RECENT)

    @property
    def handles(self) -> dict[str, Handle]:
        """What has been started and has not been seen to be gone, by name."""
        return {name: one.handle for name, one in self._owned.items()}

    async def start(self, commands: Sequence[Command]) -> None:
        """Start processes side by side. LaunchFailed says which one could not be started.

        Whoever is cancelled meanwhile still waits for the starts that are under way: what has no handle here could not
        be ended, nor found again.
        """
        starts = [asyncio.create_task(self._start(command)) for command in commands]
        try:
            await asyncio.wait(starts)
        except asyncio.CancelledError:
            await asyncio.wait(starts, timeout=self.timeouts.grace)
            for start in starts:
                start.cancel()
            await asyncio.gather(*starts, return_exceptions=True)
            raise
        errors = [error for start in starts if (error := start.exception())]
        if errors:
            raise errors[0]

    async def _start(self, command: Command) -> None:
        path = self.recorder.directory.log(command.name)
        logs.keep_older(path)
        log = logs.Log(path)
        try:
            handle = await self.executor.start(command, path)
        except LaunchFailed as error:
            self.recorder.process_phase(command.name, "failed", error.what)
            raise
        self._owned[command.name] = _Owned(command, handle, log)
        self.recorder.started(handle)

    async def watch(self) -> None:
        """Never return; raise ProcessDied as soon as a process of the run has ended by itself."""
        tidied = 0.0
        while True:
            for one in list(self._owned.values()):
                code = await self._poll(one.handle)
                one.log.look()
                if (code is not None or one.log.dying) and not one.released:
                    crash = self._report(one, code)
                    await self._report_others(one.handle.name)
                    raise ProcessDied(crash)
            if time.monotonic() - tidied >= HOUSEKEEPING_S:
                tidied = time.monotonic()
                self._tidy()
            await asyncio.sleep(self.timeouts.poll)

    async def _report_others(self, first: str) -> None:
        """Put those on record that died in the same moment."""
        for name, one in list(self._owned.items()):
            with contextlib.suppress(LaunchFailed):
                code = await self._poll(one.handle)
                if code is not None and name != first and not one.released:
                    self._report(one, code)

    async def _poll(self, handle: Handle) -> int | None:
        try:
            return await self.executor.poll(handle)
        except PlaceLost as lost:
            for name in lost.processes:
                self.recorder.process_phase(name, "failed", lost.why)
            raise

    async def healthy(self, urls: Mapping[str, str]) -> None:
        """Wait until every server, name -> URL, answers /health. LaunchFailed names those that do not in time.

        Each is asked at its own pace: one that is slow to answer keeps no other's health from being noticed.
        """
        waiting = dict(urls)
        try:
            async with (
                aiohttp.ClientSession(timeout=UNTIMED, connector=aiohttp.TCPConnector(limit=0)) as session,
                asyncio.timeout(self.timeouts.health),
                asyncio.TaskGroup() as looks,
            ):
                for name in urls:
                    looks.create_task(self._healthy(session, name, waiting))
        except TimeoutError:
            raise self._not_healthy(list(waiting)) from None
        except ExceptionGroup as group:
            raise group.exceptions[0] from None

    async def _healthy(self, session: aiohttp.ClientSession, name: str, waiting: dict[str, str]) -> None:
        """Ask one server until it answers; it is then no longer among those that are waited for."""
        log = self._owned[name].log
        self._waits_for(waiting)
        while not await self._answers(session, f"{waiting[name]}/health"):
            log.look()
            if log.loading:
                self.recorder.process_phase(name, "loading")
            await asyncio.sleep(self.timeouts.poll)
        log.look()
        del waiting[name]
        self._waits_for(waiting)
        self._note_segments(name)
        self.recorder.process_phase(name, "healthy")

    async def _answers(self, session: aiohttp.ClientSession, url: str) -> bool:
        try:
            async with asyncio.timeout(self.timeouts.health_request), session.get(url) as response:
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False

    def _waits_for(self, names: Iterable[str]) -> None:
        self.recorder.state.waiting_for = f"/health of {_some(list(names))}"

    def release(self, names: Iterable[str]) -> None:
        """Take no end of these processes for a death any more: they are to be ended, or die because a peer has."""
        for name in names:
            if name in self._owned:
                self._owned[name].released = True

    async def stop(self, hurry: asyncio.Event, *, drain: bool = True) -> dict[str, str]:
        """End every process. Return who is left, and why."""
        return await self.end(list(self._owned), hurry, drain=drain)

    async def end(self, names: Sequence[str], hurry: asyncio.Event, *, drain: bool = True) -> dict[str, str]:
        """End processes: ask, wait the grace time, then kill sessions. Return who is left, and why.

        Each ends by itself, and is on record as gone once it is, so that a host that is lost keeps nobody on the others
        from being ended and collected. drain: whether there is a time of grace. `hurry` ends it, and the patience with
        hosts that do not answer. Whoever is cancelled in the middle of this has not lost them: they are in `handles`.
        """
        handles = [self._owned[name].handle for name in names if name in self._owned]
        self.release(names)
        for handle in handles:
            self._note_segments(handle.name)
        grace = self.timeouts.grace if drain else 0.0
        ends = [asyncio.create_task(self._end(handle, hurry, grace)) for handle in handles]
        await asyncio.gather(*ends, return_exceptions=True)  # whatever one comes to, the others are waited for
        return {handle.name: why for handle, end in zip(handles, ends, strict=True) if (why := end.result())}

    async def _end(self, handle: Handle, hurry: asyncio.Event, grace: float) -> str:
        """End one process, and fetch what is left of its log. Why it is left, or nothing."""
        with contextlib.suppress(Exception):  # one that cannot be asked is killed below, like one that does not listen
            await self._answer(self.executor.terminate(handle), hurry)
        deadline = time.monotonic() + grace
        while not hurry.is_set() and time.monotonic() < deadline and await self._runs(handle, hurry):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(hurry.wait(), self.timeouts.poll)
        begun, killed = time.monotonic(), -math.inf
        while why := await self._runs(handle, hurry):
            now = time.monotonic()
            unanswered = self.timeouts.hurried if hurry.is_set() else self.timeouts.unanswered
            if now - begun > (self.timeouts.gone if why == RUNS_ON else unanswered):
                return why
            if now - killed > KILL_AGAIN_S:
                killed = now
                with contextlib.suppress(Exception):
                    await self._answer(self.executor.kill(handle), hurry)
            await asyncio.sleep(self.timeouts.poll)
        with contextlib.suppress(Exception):
            await self._answer(self.executor.collect(handle), hurry)
        self._gone(handle.name)
        return ""

    async def _runs(self, handle: Handle, hurry: asyncio.Event) -> str:
        """Why a process is taken for one that runs: it does, or its host cannot be asked. Empty if it is gone."""
        try:
            return RUNS_ON if await self._answer(self.executor.survivors(handle), hurry) else ""
        except Exception as error:  # noqa: BLE001 - whatever keeps the host from answering, the others must be ended
            return f"nobody knows whether it still runs ({str(error) or 'its host does not answer'})"

    async def _answer(self, asking: Coroutine[Any, Any, T], hurry: asyncio.Event) -> T:
        """What an executor says, which takes its time over a lost host. TimeoutError if `hurry` does not leave it."""
        asked, _ = tasks = asyncio.create_task(asking), asyncio.create_task(hurry.wait())
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            async with asyncio.timeout(self.timeouts.hurried):
                return await asked
        finally:
            for task in tasks:
                task.cancel()

    def _gone(self, name: str) -> None:
        """Nothing is left of a process, and that is said."""
        del self._owned[name]
        self.recorder.gone(name)
        shared_memory.remove(self.recorder.state.processes[name].segments)

    def _note_segments(self, name: str) -> None:
        """What a process has in /dev/shm: known only while it runs, and wanted once it has been killed."""
        one = self._owned[name]
        if one.command.host.local:
            process = self.recorder.state.processes[name]
            process.segments = sorted({*process.segments, *shared_memory.of_session(one.handle.pid)})

    def _report(self, one: _Owned, code: int | None) -> Crash:
        """Say why a process has died, and put that on record."""
        process = self.recorder.state.processes[one.handle.name]
        text = secrets.without(logs.last_text(one.log.path), one.command.env)
        evidence = Evidence(text=text, exit_code=code)
        folder = one.log.path.parent
        if one.command.host.local:
            signs = kernel.signs(evidence.codes, self._oom_kills[0], folder)
        else:
            signs = kernel.told(evidence.codes, text, folder)
        cause, line = cause_of(replace(evidence, signs=signs))
        crash = Crash(
            process=one.handle.name,
            host=one.handle.host,
            pid=one.handle.pid,
            how=ending(code) if code is not None else one.log.dying,
            exit_code=code,
            phase=process.phase,
            after_s=round(self.recorder.state.age(process), 3),
            last_lines=tuple(logs.last_lines(text, LINES)),
            log=str(one.log.path),
            cause=cause,
            line=line,
        )
        with contextlib.suppress(LaunchFailed):  # a record that cannot be written hides no death
            self.recorder.crashed(crash)
        return crash

    def _tidy(self) -> None:
        """Keep logs within bounds, and see whether the disk still takes them."""
        self._oom_kills.append(kernel.oom_kills())
        self.recorder.look_at_disk()
        for one in self._owned.values():
            if freed := disk.trim(one.log.path):
                text = f"{one.handle.name}: {freed >> 20} MiB of its log's middle were dropped"
                self.recorder.event("log", text, process=one.handle.name, freed=freed)

    def _not_healthy(self, names: list[str]) -> LaunchFailed:
        paths = {name: self._owned[name].log.path for name in names}
        quoted = "\n".join(f"{name}, last lines:\n{logs.indented(logs.tail(path))}" for name, path in paths.items())
        return LaunchFailed(
            f"not healthy after {self.timeouts.health:.0f} s: {', '.join(names)}\n{quoted}",
            where=", ".join(map(str, paths.values())),
        )


def in_words(left: Mapping[str, str]) -> str:
    """Who is left, and why, for a sentence."""
    whys = dict.fromkeys(left.values())
    return "; ".join(f"{why}: {', '.join(name for name in left if left[name] == why)}" for why in whys)


def _some(names: Sequence[str], most: int = 6) -> str:
    """Names as they fit a line of the screen."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
