"""What other terminals do with a run: look at it, follow its logs, stop it. All they have is its directory."""

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from disagg_cli.errors import DisaggError, Interrupted, LaunchFailed, UsageError, kind_of
from disagg_cli.executors import logfile, sessions
from disagg_cli.executors.protocol import Executor, Handle, HostLost, Remembers, Site
from disagg_cli.executors.registry import make
from disagg_cli.runtime import disk, job, shared_memory
from disagg_cli.runtime.clock import age
from disagg_cli.runtime.elsewhere import (
    ends,
    given_up,
    is_elsewhere,
    job_that_knows,
    only_there,
    see_to_its_end,
)
from disagg_cli.runtime.phases import ALIVE
from disagg_cli.runtime.rundir import RunDir, event
from disagg_cli.runtime.state import is_there
from disagg_cli.settings import ON_CPU

STOP_S = ON_CPU.grace + ON_CPU.gone + 6.0
"""What a supervisor may need to end its processes, and some time of its own."""
KILL_S = 3.0
HEARD_S = 10.0
"""For a supervisor on another host to see that its processes have gone, and to say so."""
FOLLOW_S = 0.2
WATCH_S = 0.5
MOST_AT_ONCE = 4 << 20
"""Bytes of a log, or of events, that are held at once: a flood has no end, nor may a line have one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Status:
    """A run as its state.json tells it, and whether the process that supervises it is still there.

    elsewhere: another machine supervises it, so that only its own word tells. suspended: its supervisor does nothing
    until it is continued. disk: what is wrong with its disk.
    """

    state: dict[str, Any]
    supervised: bool
    elsewhere: bool = False
    suspended: bool = False
    disk: str = ""

    @property
    def phase(self) -> str:
        """The run's phase; `lost` where nobody supervises a run that has not ended."""
        phase = str(self.state["phase"])
        return phase if self.supervised or phase == "ended" else "lost"

    @property
    def over(self) -> bool:
        """Whether nothing will happen any more by itself."""
        return self.phase in ("ended", "lost")

    def age(self, of: Mapping[str, Any] | None = None) -> float:
        """Seconds since the run, or this process of it, entered its phase."""
        entered = of or self.state
        return age(entered["since"], entered.get("clock", 0.0), self.state.get("boot", ""))

    def document(self) -> dict[str, Any]:
        """The status as JSON."""
        return {
            **self.state,
            "schema": "disagg.status/1",
            "phase": self.phase,
            "supervised": self.supervised,
            "suspended": self.suspended,
            "age_s": round(self.age(), 1),
            "disk": self.disk,
            "processes": [{**one, "age_s": round(self.age(one), 1)} for one in self.state["processes"]],
        }


def status(run: RunDir, look: Callable[[], job.Now] | None = None) -> Status:
    """Read what a run is doing. look: how to look at one in a Slurm job, where that is not to be asked every time."""
    state = run.state()
    if not state:
        raise UsageError(f"{run.path.name} has no state yet", where=str(run.path))
    full = disk.room(run.path) < disk.LEAST  # the supervisor may not have been able to write that
    trouble = state.get("disk") or (disk.trouble(run.path) if full else "")
    if number := job_that_knows(run, state):
        now = look() if look else job.look(run, number)
        return Status(state=now.told, supervised=now.supervised, elsewhere=True, suspended=now.suspended, disk=trouble)
    elsewhere, there = is_elsewhere(state), is_there(state)
    return Status(
        state=state,
        supervised=elsewhere or there,
        elsewhere=elsewhere,
        suspended=there and sessions.suspended(state["pid"]),
        disk=trouble,
    )


def watcher(run: RunDir) -> Callable[[], Status]:
    """How to read again and again what a run is doing, without asking Slurm each time."""
    number = job_that_knows(run, run.state())
    return partial(status, run, job.Lookout(run, number) if number else None)


def watch(run: RunDir) -> Iterator[Status]:
    """Yield what a run is doing, again and again, the last time when it is over."""
    look = watcher(run)
    while True:
        now = look()
        yield now
        if now.over:
            return
        time.sleep(WATCH_S)


def stop(run: RunDir, *, force: bool = False) -> tuple[str, ...]:
    """End a run and wait until all its processes are gone. Return the names of those that outlived its supervisor.

    force: ask no supervisor, which may be on a host that is gone. UsageError if the run can only be ended elsewhere.
    """
    if number := job.number_of(run):
        job.stop(run, number, at_once=force)
        return ()
    now = status(run)
    if now.elsewhere and not now.over:
        see_to_its_end(run, now.state, within=STOP_S, force=force)
    elif now.supervised and not now.elsewhere:
        if not force:
            sessions.send(now.state["pid"], signal.SIGTERM)
            sessions.send(now.state["pid"], signal.SIGCONT)  # one that Ctrl-Z has suspended hears nothing before
        if force or not _gone(now.state["pid"], now.state["born"], within=STOP_S):
            sessions.send(now.state["pid"], signal.SIGKILL)
            _gone(now.state["pid"], now.state["born"], within=KILL_S)
    leftovers: tuple[str, ...] = ()
    unseen = now.elsewhere and only_there(run)
    if not unseen:
        leftovers = asyncio.run(_end_leftovers(run))
    if leftovers and now.elsewhere and not ends(run, within=HEARD_S) and asyncio.run(_end_leftovers(run)):
        host = now.state["host"]
        raise LaunchFailed(f"their supervisor on {host} starts them again", fix=f"run `disagg stop` on {host}")
    state = run.state()
    job.forget_secrets(run)
    if state["phase"] != "ended":
        reason = given_up(state) if unseen else "stopped after its supervisor had gone"
        with contextlib.suppress(OSError):  # a disk that is full only has the run listed until there is room
            run.write("state.json", state | {"phase": "ended", "exit_code": LaunchFailed.exit_code, "reason": reason})
    return leftovers


def _gone(pid: int, born: float, *, within: float) -> bool:
    """Wait until a process has gone; whether it has."""
    deadline = time.monotonic() + within
    while sessions.same_process(pid, born):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


async def _end_leftovers(run: RunDir) -> tuple[str, ...]:
    """End the sessions of processes that outlived their supervisor, wherever they run. LaunchFailed if some stay.

    Hosts of processes that are on record as gone are not asked again.
    """
    made = run.read("deployment.json")
    site = Site(settings=made.get("executor_settings", {}), run=run.path.name, logs=run.logs)
    executor = make(made.get("executor", "local"), site)
    processes = status(run).state["processes"]
    handles = [handle for process in processes if not process.get("gone") and (handle := _handle(process))]
    found: dict[str, None] = {}
    lost: dict[str, LaunchFailed] = {}
    deadline = time.monotonic() + STOP_S
    try:
        if isinstance(executor, Remembers):
            handles += await _unrecorded(executor, made, status(run), lost)
        if handles:
            await executor.open()
        while left := await _survivors(executor, [one for one in handles if one.name not in lost], lost):
            found |= dict.fromkeys(handle.name for handle in left)
            if time.monotonic() > deadline:
                raise LaunchFailed(f"still running after SIGKILL: {', '.join(found)}")
            await asyncio.gather(*map(executor.kill, left), return_exceptions=True)
            await asyncio.sleep(0.1)
        kept = [executor.collect(handle) for handle in handles if handle.name not in lost]
        await asyncio.gather(*kept, return_exceptions=True)
    finally:
        await executor.close()
    shared_memory.remove(name for process in status(run).state["processes"] for name in process.get("segments", ()))
    _note_gone(run, {handle.name for handle in handles} - set(lost))
    if lost:
        raise _unsure(lost)
    return tuple(found)


def _unsure(lost: Mapping[str, LaunchFailed]) -> LaunchFailed:
    """What to say of processes whose hosts cannot be asked."""
    whats = "; ".join(dict.fromkeys(error.what for error in lost.values()))
    fix = "run `disagg stop` again once it answers"
    if all(isinstance(error, HostLost) for error in lost.values()):
        fix += "; it ends them by itself after some time alone (lease_s)"
    return LaunchFailed(f"nobody knows whether {', '.join(lost)} still run: {whats}", fix=fix)


def _note_gone(run: RunDir, names: set[str]) -> None:
    """Put on record that nothing is left of these processes. A disk that is full only has them looked for again."""
    state = run.state()
    for process in state["processes"]:
        if process["name"] in names and not process.get("gone"):
            process["gone"] = True
            if process["phase"] in ALIVE:
                process |= {"phase": "stopped", "since": time.time(), "clock": time.monotonic()}
    if names:
        with contextlib.suppress(OSError):
            run.write("state.json", state)


async def _survivors(executor: Executor, handles: Sequence[Handle], lost: dict[str, LaunchFailed]) -> list[Handle]:
    """Those that still run; those whose host cannot be asked go into `lost`."""
    answers = await asyncio.gather(*map(executor.survivors, handles), return_exceptions=True)
    for handle, answer in zip(handles, answers, strict=True):
        if isinstance(answer, LaunchFailed):
            lost[handle.name] = answer
        elif isinstance(answer, BaseException):
            raise answer
    return [handle for handle, pids in zip(handles, answers, strict=True) if pids and handle.name not in lost]


async def _unrecorded(
    executor: Remembers, made: Mapping[str, Any], now: Status, lost: dict[str, LaunchFailed]
) -> list[Handle]:
    """What was started though nobody could note it: its supervisor was killed, or the host lost, in that moment.

    Hosts that cannot be asked go into `lost`.
    """
    processes = now.state["processes"]
    unsure = {one["name"] for one in processes if one["phase"] == "failed" and one["pid"] is None}
    if now.phase == "lost":
        unsure |= {one["name"] for one in processes if one["phase"] == "waiting"}
    asked = {one["name"]: one["host"] for one in made.get("processes", ()) if one["name"] in unsure}
    answers = await asyncio.gather(*map(executor.started, asked, asked.values()), return_exceptions=True)
    found: list[Handle] = []
    for name, answer in zip(asked, answers, strict=True):
        if isinstance(answer, LaunchFailed):
            lost[name] = answer
        elif isinstance(answer, BaseException):
            raise answer
        else:
            found += answer
    known = {process.get("token") for process in processes}
    return [handle for handle in found if handle.token not in known]


def _handle(process: dict[str, Any]) -> Handle | None:
    """The handle of a process on record; None if it was not started."""
    if process["pid"] is None:
        return None
    kept = {key: process.get(key, "") for key in ("name", "host", "pid", "born", "token")}
    return Handle(**kept, log=Path(process["log"]))


def logs_of(run: RunDir, process: str | None) -> list[Path]:
    """The logs to show: one process's, or all. UsageError names those that exist."""
    logs = sorted(run.logs.glob("*.log"))
    if process is None:
        return logs
    chosen = [log for log in logs if log.stem == process]
    if not chosen:
        raise UsageError(f"no log of {process} in {run.path.name}", fix=f"there are: {', '.join(p.stem for p in logs)}")
    return chosen


def read_logs(run: RunDir, process: str | None, *, lines: int, follow: bool) -> Iterator[tuple[str, str]]:
    """Yield (process, line): the last lines of each log, then, with `follow`, what is added until the run has ended.

    Logs that appear later, such as the router's, are followed as well. UsageError if there is no log of `process`.
    """
    places: dict[int, int] = {}  # by inode: a process that is started again gets a new log of the same name
    for log in logs_of(run, process):
        found = log.stat()
        text, places[found.st_ino] = _new_text(log, max(0, found.st_size - MOST_AT_ONCE), unfinished=not follow)
        yield from ((log.stem, line) for line in text.splitlines()[-lines:] if lines)
    look = watcher(run) if follow else None
    while look:
        over, news = look().over, False  # asked before the last look, so that no line is missed
        for log in logs_of(run, process):
            inode = log.stat().st_ino
            before = places.get(inode, 0)
            text, places[inode] = _new_text(log, before, unfinished=over)
            yield from ((log.stem, line) for line in text.splitlines())
            news = news or places[inode] != before
        if over and not news:
            return
        time.sleep(0 if news else FOLLOW_S)


def _new_text(log: Path, start: int, *, unfinished: bool = False) -> tuple[str, int]:
    """Whole lines after `start`, at most MOST_AT_ONCE of them, and where they end.

    With `unfinished` also a last line that no newline ends; one that is longer than all that counts as a line anyhow.
    """
    data, past, more = logfile.piece(log, start, MOST_AT_ONCE)
    end = data.rfind(b"\n") + 1
    if (unfinished and not more) or (more and not end):
        end = len(data)
    return data[:end].replace(b"\0", b"").decode(errors="replace"), past - (len(data) - end)


def start_detached(
    config: Path, run: RunDir, flags: Sequence[str], changes: Mapping[str, Sequence[str]]
) -> subprocess.Popen[bytes]:
    """Start `disagg launch` in a session of its own, writing to the run's launch.log.

    What the user has set and unset goes through a pipe: this command line stays readable for as long as the run.
    """
    command = [sys.executable, "-m", "disagg_cli", "launch", str(config), "--run-dir", str(run.path), *flags]
    with (run.path / "launch.log").open("ab") as log:
        child = subprocess.Popen(
            [*command, "--changes-on-stdin"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    assert child.stdin
    with contextlib.suppress(BrokenPipeError), child.stdin:  # one that has died already is told of by its exit code
        child.stdin.write(json.dumps({name: list(words) for name, words in changes.items()}).encode())
    return child


def end_detached(run: RunDir, child: subprocess.Popen[bytes]) -> None:
    """End a detached launch, whether it has begun to keep a record or not, and whatever it has started."""
    for _ in range(2):  # asked twice it hurries
        child.send_signal(signal.SIGTERM)
        with contextlib.suppress(Interrupted, subprocess.TimeoutExpired):
            child.wait(STOP_S)
            break
    if child.poll() is None:
        sessions.kill_session(child.pid)
        child.wait(KILL_S)
    if run.state():
        stop(run)


def follow_until_serving(run: RunDir, child: subprocess.Popen[bytes]) -> Iterator[str]:
    """Yield what happens in a detached run until it serves. LaunchFailed, or what ended it, if it does not."""
    events, place = run.path / "events.jsonl", 0
    while True:
        code = child.poll()
        if events.exists():
            text, place = _new_text(events, place)
            yield from (str(event(line)["text"]) for line in text.splitlines())
        if run.state().get("phase") == "serving":
            return
        if code is not None:
            raise _ended_early(run, code)
        time.sleep(FOLLOW_S)


def _ended_early(run: RunDir, code: int) -> DisaggError:
    log = run.path / "launch.log"
    reason = run.state().get("reason") or _new_text(log, 0, unfinished=True)[0].strip()
    if not reason and disk.room(run.path) < disk.LEAST:
        reason = disk.trouble(run.path)
    return kind_of(code)(f"the detached run ended: {reason}", where=str(log))


def summary(run: RunDir) -> dict[str, Any]:
    """How a run stands, in one document: what `launch --json` prints."""
    state = run.state()
    keys = ("run", "name", "url", "phase", "exit_code", "reason")
    return {
        "schema": "disagg.launch/1",
        **{key: state.get(key) for key in keys},
        "directory": str(run.path),
        "probe": run.read("probe.json"),
        "eval": run.read("eval/summary.json"),
    }
