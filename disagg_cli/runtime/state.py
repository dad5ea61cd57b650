"""What a run is doing now: in memory, in state.json for other terminals, and line by line in events.jsonl."""

import contextlib
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from disagg_cli.errors import LaunchFailed
from disagg_cli.executors.protocol import Handle
from disagg_cli.executors.sessions import boot, born, same_process
from disagg_cli.runtime import disk
from disagg_cli.runtime.clock import age
from disagg_cli.runtime.crash import Crash
from disagg_cli.runtime.phases import Phase, RunPhase, may_follow, run_may_follow
from disagg_cli.runtime.rundir import STATE_SCHEMA, RunDir

MOST_UNWRITTEN = 10_000
"""Events that wait for space on a full disk; older ones are lost."""


@dataclass(slots=True)
class ProcessState:
    """One process of the run. since: when it entered its phase, in seconds since the epoch; clock: since the boot.

    starts: how many times it has been started. segments: what it has in /dev/shm. gone: its end has been seen, and its
    log fetched, so that nobody has to look for it any more.
    """

    name: str
    role: str
    url: str
    log: str
    phase: Phase = "waiting"
    since: float = field(default_factory=time.time)
    clock: float = field(default_factory=time.monotonic)
    detail: str = ""
    host: str = ""
    pid: int | None = None
    born: float = 0.0
    token: str = ""
    starts: int = 0
    segments: list[str] = field(default_factory=list)
    gone: bool = False


@dataclass(slots=True)
class RunState:
    """The whole run. waiting_for is what is on screen; exit_code and reason are set when it has ended.

    crashes: reports of processes that died. restarts: how often the gang has been started again. disk: what is wrong
    with the disk that holds record and logs, empty while nothing is.
    """

    run: str
    name: str
    url: str
    processes: dict[str, ProcessState]
    phase: RunPhase = "starting"
    since: float = field(default_factory=time.time)
    clock: float = field(default_factory=time.monotonic)
    started: float = field(default_factory=time.time)
    started_clock: float = field(default_factory=time.monotonic)
    boot: str = field(default_factory=boot)
    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)
    born: float = field(default_factory=lambda: born(os.getpid()))
    waiting_for: str = ""
    exit_code: int | None = None
    reason: str = ""
    crashes: list[dict[str, Any]] = field(default_factory=list)
    restarts: int = 0
    disk: str = ""

    def age(self, of: "RunState | ProcessState") -> float:
        """Seconds since the run, or one of its processes, entered its phase."""
        return age(of.since, of.clock, self.boot)


def is_there(state: Mapping[str, Any]) -> bool:
    """Whether a run's supervisor is a process of this machine, whatever that is called by now."""
    this_boot = state.get("boot", boot()) == boot()
    return this_boot and same_process(state["pid"], state["born"])


class Recorder:
    """Keeps the state, and tells everyone who listens what happens.

    A full disk ends nothing: events wait in memory for space, and the state says what is wrong. Any other reason why
    the record cannot be written is LaunchFailed, but not while the run is being ended: that must go on.
    """

    def __init__(self, directory: RunDir, state: RunState) -> None:
        self.directory = directory
        self.state = state
        self.listeners: list[Callable[[str], None]] = []
        self.ending = False
        self._unwritten: deque[dict[str, Any]] = deque(maxlen=MOST_UNWRITTEN)

    def event(self, kind: str, text: str, **data: Any) -> None:
        """Record that something happened; `text` is what a person reads. `t`: seconds since the run was begun."""
        now = {"at": round(time.time(), 3), "t": round(time.monotonic() - self.state.started_clock, 3)}
        self._unwritten.append(now | {"kind": kind, "text": text, **data})
        self._tell(text)
        self.flush()

    def run_phase(self, phase: RunPhase, waiting_for: str = "") -> None:
        """The run enters a phase."""
        state = self.state
        if not run_may_follow(state.phase, phase):
            return
        state.phase, state.waiting_for = phase, waiting_for
        state.since, state.clock = time.time(), time.monotonic()
        self.event("run", f"{phase}: {waiting_for}" if waiting_for else phase, phase=phase)

    def process_phase(self, name: str, phase: Phase, detail: str = "", **data: Any) -> None:
        """A process enters a phase, if that may follow on the one it is in."""
        process = self.state.processes[name]
        before = process.phase
        if not may_follow(before, phase):
            return
        took = self.state.age(process)
        process.phase, process.detail = phase, detail
        process.since, process.clock = time.time(), time.monotonic()
        after = f" after {took:.1f} s" if phase in ("healthy", "failed") else ""
        text = f"{name} {phase}{after}{': ' + detail if detail else ''}"
        # `from` last: a program that reads events can rebuild the state machine from them
        self.event("process", text, process=name, phase=phase, after_s=round(took, 3), **data, **{"from": before})

    def started(self, handle: Handle) -> None:
        """A process exists."""
        process = self.state.processes[handle.name]
        process.host, process.token = handle.host, handle.token
        process.pid, process.born = handle.pid, handle.born
        process.starts += 1
        process.segments = []
        process.gone = False
        self.process_phase(handle.name, "starting", pid=handle.pid, host=handle.host)

    def gone(self, name: str) -> None:
        """A process has ended, and nothing of it is left."""
        self.state.processes[name].gone = True
        self.process_phase(name, "stopped")

    def crashed(self, crash: Crash) -> None:
        """A process has died by itself."""
        document = crash.document()
        self.state.crashes.append(document)
        self.process_phase(crash.process, "failed", crash.how, crash=document)

    def restarting(self, what: str) -> None:
        """Processes are to be started again."""
        self.state.restarts += 1
        self.run_phase("restarting", what)

    def again(self, names: Iterable[str]) -> None:
        """Processes that have ended wait for another start."""
        for name in names:
            self.process_phase(name, "waiting")

    def disk_trouble(self, trouble: str) -> None:
        """The disk of record and logs has this trouble, or none any more (empty). Said once."""
        if trouble != self.state.disk:
            self.state.disk = trouble
            self.event("disk", trouble or disk.AGAIN, full=bool(trouble))

    def look_at_disk(self) -> None:
        """See whether the disk has room. Logs are written by the processes themselves, so nothing else would tell.

        LaunchFailed if the run's directory was removed: no other terminal could find the run any more, or stop it.
        """
        try:
            self.directory.path.stat()
        except FileNotFoundError:
            raise LaunchFailed(
                "the run's record cannot be written: its folder was removed", where=str(self.directory.path)
            ) from None
        except OSError:
            return  # such as a server of files that does not answer now
        if disk.room(self.directory.logs) < disk.LEAST:
            self.disk_trouble(disk.trouble(self.directory.path))
        elif self.state.disk and self._written():
            self.disk_trouble("")

    def write(self, name: str, document: Mapping[str, Any]) -> None:
        """Keep a document of the run, if the disk has room for it."""
        with self._kept():
            self.directory.write(name, document)

    def flush(self) -> None:
        """Write what is not written yet: events, then state.json, which `disagg status` and `disagg stop` read."""
        with self._kept():
            self._write_all()

    def save(self) -> None:
        """Write state.json."""
        document = asdict(self.state)
        document["processes"] = list(document["processes"].values())
        self.directory.write("state.json", {"schema": STATE_SCHEMA, **document})

    def _write_all(self) -> None:
        while self._unwritten:
            self.directory.append("events.jsonl", self._unwritten[0])
            self._unwritten.popleft()
        self.save()

    def _written(self) -> bool:
        """Whether what has waited for space could be written now."""
        try:
            self._write_all()
        except OSError:
            return False
        return True

    @contextlib.contextmanager
    def _kept(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if disk.is_full(error):
                self.disk_trouble(disk.trouble(self.directory.path))
            elif not self.ending:
                raise LaunchFailed(
                    f"the run's record cannot be written: {error}", where=str(self.directory.path)
                ) from None

    def _tell(self, text: str) -> None:
        for listener in self.listeners:
            listener(text)
