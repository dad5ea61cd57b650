"""What a run is doing now: in memory, in state.json for other terminals, and line by line in events.jsonl."""

import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from disagg_cli.errors import LaunchFailed
from disagg_cli.executors.protocol import Handle
from disagg_cli.executors.sessions import born
from disagg_cli.runtime.rundir import RunDir

Phase = Literal["waiting", "starting", "loading", "healthy", "proven", "failed", "stopped"]
RunPhase = Literal["starting", "probing", "evaluating", "serving", "stopping", "ended"]


@dataclass(slots=True)
class ProcessState:
    """One process of the run. since: when it entered its phase, in seconds since the epoch."""

    name: str
    role: str
    url: str
    log: str
    phase: Phase = "waiting"
    since: float = field(default_factory=time.time)
    detail: str = ""
    host: str = ""
    pid: int | None = None
    born: float = 0.0
    token: str = ""


@dataclass(slots=True)
class RunState:
    """The whole run. waiting_for is what is on screen; exit_code and reason are set when it has ended."""

    run: str
    name: str
    url: str
    processes: dict[str, ProcessState]
    phase: RunPhase = "starting"
    since: float = field(default_factory=time.time)
    started: float = field(default_factory=time.time)
    pid: int = field(default_factory=os.getpid)
    born: float = field(default_factory=lambda: born(os.getpid()))
    waiting_for: str = ""
    exit_code: int | None = None
    reason: str = ""


class Recorder:
    """Keeps the state, and tells everyone who listens what happens."""

    def __init__(self, directory: RunDir, state: RunState) -> None:
        self.directory = directory
        self.state = state
        self.listeners: list[Callable[[str], None]] = []
        self.ending = False
        """While a run is being stopped, a record that cannot be written must not keep processes alive."""

    def event(self, kind: str, text: str, **data: Any) -> None:
        """Record that something happened; `text` is what a person reads."""
        try:
            self.directory.append("events.jsonl", {"at": round(time.time(), 3), "kind": kind, "text": text, **data})
            self.save()
        except OSError as error:
            if not self.ending:
                raise LaunchFailed(
                    f"the run's record cannot be written: {error}", where=str(self.directory.path)
                ) from None
        for listener in list(self.listeners):
            try:
                listener(text)
            except OSError:  # the terminal has gone; the run goes on, or ends as it was told to
                self.listeners.remove(listener)

    def run_phase(self, phase: RunPhase, waiting_for: str = "") -> None:
        """The run enters a phase."""
        self.state.phase, self.state.since, self.state.waiting_for = phase, time.time(), waiting_for
        self.event("run", f"{phase}: {waiting_for}" if waiting_for else phase, phase=phase)

    def process_phase(self, name: str, phase: Phase, detail: str = "") -> None:
        """A process enters a phase."""
        process = self.state.processes[name]
        if process.phase == phase:
            return
        took = time.time() - process.since
        process.phase, process.since, process.detail = phase, time.time(), detail
        after = f" after {took:.1f} s" if phase in ("healthy", "failed") else ""
        self.event("process", f"{name} {phase}{after}{': ' + detail if detail else ''}", process=name, phase=phase)

    def started(self, handle: Handle) -> None:
        """A process exists."""
        process = self.state.processes[handle.name]
        process.host, process.token = handle.host, handle.token
        process.pid, process.born = handle.pid, handle.born
        self.process_phase(handle.name, "starting")

    def save(self) -> None:
        """Write state.json, which `disagg status` and `disagg stop` read."""
        document = asdict(self.state)
        document["processes"] = list(document["processes"].values())
        self.directory.write("state.json", {"schema": "disagg.state/1", **document})
