"""What other terminals do with a run: look at it, follow its logs, stop it. All they have is its directory."""

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from disagg_cli.errors import DisaggError, LaunchFailed, UsageError
from disagg_cli.executors import sessions
from disagg_cli.executors.protocol import Handle, Site
from disagg_cli.executors.registry import make
from disagg_cli.runtime.rundir import RunDir
from disagg_cli.settings import ON_CPU

STOP_S = ON_CPU.grace + ON_CPU.gone + 6.0
"""What a supervisor may need to end its processes, and some time of its own."""
KILL_S = 3.0
FOLLOW_S = 0.2


@dataclass(frozen=True, kw_only=True, slots=True)
class Status:
    """A run as its state.json tells it, and whether the process that supervises it is still there."""

    state: dict[str, Any]
    supervised: bool

    @property
    def phase(self) -> str:
        """The run's phase; `lost` where nobody supervises a run that has not ended."""
        phase = str(self.state["phase"])
        return phase if self.supervised or phase == "ended" else "lost"

    def document(self) -> dict[str, Any]:
        """The status as JSON."""
        return {**self.state, "schema": "disagg.status/1", "phase": self.phase, "supervised": self.supervised}


def status(run: RunDir) -> Status:
    """Read what a run is doing."""
    state = run.read("state.json")
    if not state:
        raise UsageError(f"{run.path.name} has no state yet", where=str(run.path))
    return Status(state=state, supervised=sessions.same_process(state["pid"], state["born"]))


def stop(run: RunDir) -> tuple[str, ...]:
    """End a run and wait until all its processes are gone. Return the names of those that outlived its supervisor."""
    now = status(run)
    if now.supervised:
        sessions.send(now.state["pid"], signal.SIGTERM)
        if not _gone(now.state["pid"], now.state["born"], within=STOP_S):
            sessions.send(now.state["pid"], signal.SIGKILL)
            _gone(now.state["pid"], now.state["born"], within=KILL_S)
    leftovers = asyncio.run(_end_leftovers(run))
    after = status(run)
    if after.phase == "lost":
        reason = "stopped after its supervisor had gone"
        run.write("state.json", after.state | {"phase": "ended", "exit_code": LaunchFailed.exit_code, "reason": reason})
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
    """End the sessions of processes that outlived their supervisor, wherever they run. LaunchFailed if some stay."""
    made = run.read("deployment.json")
    site = Site(settings=made.get("executor_settings", {}), run=run.path.name, logs=run.logs)
    executor = make(made.get("executor", "local"), site)
    handles = [handle for process in status(run).state["processes"] if (handle := _handle(process))]
    found: list[str] = []
    deadline = time.monotonic() + STOP_S
    try:
        if handles:
            await executor.open()
        while left := [handle for handle in handles if await executor.survivors(handle)]:
            found += [handle.name for handle in left if handle.name not in found]
            if time.monotonic() > deadline:
                raise LaunchFailed(f"still running after SIGKILL: {', '.join(found)}")
            await asyncio.gather(*map(executor.kill, left))
            await asyncio.sleep(0.1)
        await asyncio.gather(*map(executor.collect, handles))
    finally:
        await executor.close()
    return tuple(found)


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
    places: dict[Path, int] = {}
    for log in logs_of(run, process):
        text, places[log] = _new_text(log, 0)
        yield from ((log.stem, line) for line in text.splitlines()[-lines:] if lines)
    while follow:
        over = status(run).phase in ("ended", "lost")  # asked before the last look, so that no line is missed
        for log in logs_of(run, process):
            text, places[log] = _new_text(log, places.get(log, 0), unfinished=over)
            yield from ((log.stem, line) for line in text.splitlines())
        if over:
            return
        time.sleep(FOLLOW_S)


def _new_text(log: Path, start: int, *, unfinished: bool = False) -> tuple[str, int]:
    """Whole lines after `start`, and where they end; with `unfinished` also a last line that no newline ends."""
    with log.open("rb") as file:
        file.seek(start)
        data = file.read()
    if not unfinished:
        data = data[: data.rfind(b"\n") + 1]
    return data.decode(errors="replace"), start + len(data)


def start_detached(config: Path, run: RunDir, flags: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start `disagg launch` in a session of its own, writing to the run's launch.log."""
    command = [sys.executable, "-m", "disagg_cli", "launch", str(config), "--run-dir", str(run.path), *flags]
    with (run.path / "launch.log").open("ab") as log:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )


def follow_until_serving(run: RunDir, child: subprocess.Popen[bytes]) -> Iterator[str]:
    """Yield what happens in a detached run until it serves. LaunchFailed, or what ended it, if it does not."""
    events, place = run.path / "events.jsonl", 0
    while True:
        code = child.poll()
        if events.exists():
            text, place = _new_text(events, place)
            yield from (str(json.loads(line)["text"]) for line in text.splitlines())
        if run.read("state.json").get("phase") == "serving":
            return
        if code is not None:
            raise _ended_early(run, code)
        time.sleep(FOLLOW_S)


def _ended_early(run: RunDir, code: int) -> DisaggError:
    reason = run.read("state.json").get("reason") or _new_text(run.path / "launch.log", 0, unfinished=True)[0].strip()
    kinds = {kind.exit_code: kind for kind in DisaggError.__subclasses__()}
    return kinds.get(code, LaunchFailed)(f"the detached run ended: {reason}", where=str(run.path / "launch.log"))


def summary(run: RunDir) -> dict[str, Any]:
    """How a run stands, in one document: what `launch --json` prints."""
    state = run.read("state.json")
    keys = ("run", "name", "url", "phase", "exit_code", "reason")
    return {
        "schema": "disagg.launch/1",
        **{key: state.get(key) for key in keys},
        "directory": str(run.path),
        "probe": run.read("probe.json"),
        "eval": run.read("eval/summary.json"),
    }
