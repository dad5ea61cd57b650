"""A run whose supervisor is the batch script of a Slurm job: followed, looked at and stopped from elsewhere.

Its directory is on a file system that login node and nodes share. job.json there names the job; what becomes of that
beside, Slurm knows.
"""

import contextlib
import math
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from disagg_cli.errors import DisaggError, Interrupted, LaunchFailed, kind_of
from disagg_cli.executors.slurm import client
from disagg_cli.executors.slurm.client import Job
from disagg_cli.runtime.logs import indented, tail
from disagg_cli.runtime.rundir import RunDir
from disagg_cli.runtime.state import is_there
from disagg_cli.settings import ON_CPU

RECORD = "job.json"
SCRIPT = "job.sbatch"
ALLOCATION = "allocation.json"
TOPOLOGY = "submitted.yaml"
"""The topology as it was submitted, whatever happens to the user's file while the job waits. It may hold secrets: only
its owner can read it, and the job takes it away once it has read it."""

ASK_S = 5.0
"""Between two questions to the controller of whoever watches: it serves a whole cluster, and many may watch."""
WAIT_S = 0.5
"""The same, while somebody waits for a job to end."""
SILENT_S = 10.0
"""Without an answer of the controller, before nobody waits for one any more."""
PROMPT_S = 0.5
"""The same, for whoever has other things to tell: one that is not busy answers within milliseconds."""
STOP_S = ON_CPU.grace + ON_CPU.gone + 10.0
"""What disagg in the job may need to end its steps."""
CANCEL_S = 60.0
"""What Slurm may need to end a job: twice slurm.conf's KillWait, which is 30 s by default."""
LAST_WORD_S = 15.0
"""For disagg's last word in a job that has failed: a node that is gone may keep the job itself from ending for long."""
MOST_OF_AN_ERROR = 24
"""Lines of an error that disagg printed in its job: a crash report has a dozen."""
AGAINST_ITS_WILL = ("PREEMPTED", "NODE_FAIL", "TIMEOUT")
"""States of a job that was ended although nobody asked for it."""


def forget_secrets(directory: RunDir) -> None:
    """Take away the topology as it was submitted."""
    (directory.path / TOPOLOGY).unlink(missing_ok=True)


@contextlib.contextmanager
def read_once(folder: Path | None) -> Iterator[None]:
    """In a job, whose run is in this folder: take away what was submitted as soon as the body has read it."""
    try:
        yield
    finally:
        if folder:
            forget_secrets(RunDir(folder))


def number_of(directory: RunDir) -> str | None:
    """The Slurm job that supervises a run, if one does.

    It is looked for by its script where a disagg that was killed while it submitted it had no time to write it down.
    """
    if number := directory.read(RECORD).get("job"):
        return str(number)
    script, state = directory.path / SCRIPT, directory.state()
    if script.exists() and state.get("phase") == "pending" and not is_there(state):
        with contextlib.suppress(LaunchFailed):
            if number := client.running(script):
                write_down(directory, number)
                return number
    return None


def write_down(directory: RunDir, number: str) -> None:
    """Keep the number of the job that supervises a run."""
    directory.write(RECORD, {"schema": "disagg.job/1", "job": number})


@dataclass(frozen=True, kw_only=True, slots=True)
class Around:
    """The Slurm job in which somebody has started disagg, and its node there; empty if that is none of the job's."""

    job: str
    node: str


def around(directory: RunDir) -> Around | None:
    """The job around a run's supervisor, which is not all of that job."""
    found = directory.read(ALLOCATION)
    return Around(job=found["job"], node=found["node"]) if found else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Now:
    """A run's state, and its job. job: None where Slurm no longer knows it; `asked` says whether Slurm answered."""

    state: Mapping[str, Any]
    job: Job | None
    asked: bool = True

    @property
    def supervised(self) -> bool:
        """Whether disagg is there in the job, or may be."""
        return self.there and not (self.job and self.job.lost)

    @property
    def there(self) -> bool:
        """Whether the job is there, or may be."""
        return not self.asked or (self.job is not None and not self.job.ended)

    @property
    def suspended(self) -> bool:
        """Whether Slurm lets nothing of the job go on: disagg in it hears nothing either."""
        return self.job is not None and self.job.state == "SUSPENDED"

    @property
    def told(self) -> dict[str, Any]:
        """The state, with what Slurm adds to it."""
        state = dict(self.state)
        if self.job and self.job.waits and state.get("phase") == "pending":
            state |= {"phase": "pending", "waiting_for": f"Slurm ({self.job.reason})"}
        job = {"id": self.job.id, "state": self.job.state, "reason": self.job.reason} if self.job else None
        return state | {"job": job}


def look(directory: RunDir, number: str) -> Now:
    """What a run and its job are doing."""
    state = directory.state()  # first: what ends between the two looks has been written by the second
    if state.get("phase") == "ended":
        return Now(state=state, job=None)
    now = look_at(number)
    if now.job and number_of(directory) != number:  # disagg is not its script, and salloc has none: %B is its own host
        now = replace(now, job=replace(now.job, lost=""))
    if not now.supervised:  # whoever would have read it is gone, and may never have come to it
        forget_secrets(directory)
    return replace(now, state=state if now.supervised else directory.state())


def look_at(number: str) -> Now:
    """What a job is doing."""
    try:
        return Now(state={}, job=client.job(number))
    except LaunchFailed:
        return Now(state={}, job=None, asked=False)


class Lookout:
    """Looks at a run as often as it is asked to: at the run's files every time, at Slurm now and then.

    A controller that is slow to answer is waited for beside that, so that nothing else is told late.
    """

    def __init__(self, directory: RunDir, number: str) -> None:
        self._directory = directory
        self._number = number
        self._asked = -math.inf
        self._asking = threading.Thread()
        self._job = Now(state={}, job=None, asked=False)
        self._error: Exception | None = None

    def __call__(self) -> Now:
        """What the run and its job are doing, as far as that is known."""
        if not self._asking.is_alive() and time.monotonic() - self._asked >= ASK_S:
            self._asked = time.monotonic()
            self._asking = threading.Thread(target=self._ask, daemon=True)
            with uninterrupted():  # or a signal that is to wait would find its way through this thread
                self._asking.start()
            self._asking.join(PROMPT_S)
        if self._error:
            raise self._error
        return replace(self._job, state=self._directory.state())

    def _ask(self) -> None:
        try:
            self._job = look(self._directory, self._number)
        except Exception as error:  # noqa: BLE001 - it is raised where somebody waits for an answer
            self._error = error


def ended(directory: RunDir, state: Mapping[str, Any]) -> DisaggError:
    """What ended a run that failed, as the error that ended it there."""
    log = directory.path / "launch.log"
    where = str(log if log.exists() else directory.path)
    return kind_of(state["exit_code"])(f"the run ended: {state['reason']}", where=where)


def raise_failure(directory: RunDir, number: str) -> None:
    """Raise what ended a run, unless it ended as it should; Slurm may know of a reason that disagg did not hear.

    Both have said their last word once the job is over. Where Slurm says nothing, disagg's word stands.
    """
    _wait(number, LAST_WORD_S if directory.state()["exit_code"] else CANCEL_S)
    state = directory.state()
    if state["exit_code"]:
        raise ended(directory, state)
    job = look_at(number).job
    if job and job.state in AGAINST_ITS_WILL:
        raise LaunchFailed(job.sentence, where=str(directory.path / "launch.log"))


def failed_nodes(state: Mapping[str, Any]) -> str:
    """Which nodes of a run have failed, in a sentence."""
    hosts = dict.fromkeys(one["host"] for one in state["processes"] if one["host"])
    return client.failed(hosts) or "a node of it has failed"


def lost(directory: RunDir, number: str, now: Now, kind: type[DisaggError] | None = None) -> DisaggError:
    """What is known of a run whose job ended without a word, written down as its end.

    kind: of error, where that is known. Else a job that was cancelled, or asked to end before disagg listened, was
    interrupted, and the exit code of any other is that of disagg, the job's only program.
    """
    what = now.job.sentence if now.job else f"Slurm no longer knows job {number}"
    if now.job and now.job.state == "NODE_FAIL":
        what += f": {failed_nodes(now.state)}"
    if now.job and now.job.lost:
        kind = LaunchFailed
        _scancel(number)  # what is left of it serves nobody
    if kind is None:
        code = client.exit_code(number)
        cancelled = (now.job and now.job.state == "CANCELLED") or code == -signal.SIGTERM
        kind = Interrupted if cancelled else kind_of(code)
    state = dict(now.state) | {"phase": "ended", "exit_code": kind.exit_code, "reason": what}
    state["processes"] = [one | {"gone": True} for one in now.state["processes"]]  # steps end with their job
    with contextlib.suppress(OSError):  # a disk that is full keeps nobody from being told
        directory.write("state.json", state)
        directory.append("events.jsonl", {"at": round(time.time(), 3), "kind": "slurm", "text": what})
    forget_secrets(directory)
    log = directory.path / "launch.log"
    said = _last_words(log) if log.exists() else "(it has not started)"
    return kind(f"{what}\n{indented(said)}", where=str(log))


def _last_words(log: Path) -> str:
    """What disagg printed last in its job, from its error on, if it had the time for one."""
    said = tail(log, MOST_OF_AN_ERROR)
    error = f"\n{said}".rfind("\nerror: ")
    return tail(log, 5) if error < 0 else said[error:]


def stop(directory: RunDir, number: str, *, at_once: bool = False) -> None:
    """Ask disagg in the job to end the run, unless that is to be at once; then cancel the job, if it is still there.

    LaunchFailed if Slurm does not end it, or does not answer. Who wants it at once may signal once more before it is
    over, and nobody else would cancel the job then: so that comes first.
    """
    if at_once:
        with uninterrupted():
            _scancel(number)
            forget_secrets(directory)
    try:
        waited = _end(directory, number, at_once=at_once)
    except Interrupted:  # Slurm goes on with that, and nobody may be there to see its end
        if at_once:
            with uninterrupted():
                _say_ended(directory, number, Interrupted)
        raise
    _say_ended(directory, number, Interrupted if waited or at_once else None)


def _end(directory: RunDir, number: str, *, at_once: bool) -> bool:
    """Have the job end, and wait for it; whether it had not started."""
    now = look(directory, number)
    waited = now.job is not None and now.job.waits
    if now.job and now.supervised and not waited and not at_once and not now.suspended:
        _scancel("--batch", "--signal=TERM", number)
        _wait(number, STOP_S)
    if look(directory, number).there:
        _scancel(number)
        if not _wait(number, CANCEL_S):
            client.job(number)  # says so where Slurm does not answer
            raise LaunchFailed(f"Slurm job {number} does not end", fix=f"scancel {number}; squeue -j {number}")
    return waited


def _say_ended(directory: RunDir, number: str, kind: type[DisaggError] | None) -> None:
    """Write down that the run has ended, unless disagg in the job has done so."""
    now = Now(state=directory.state(), job=look_at(number).job)
    if now.state.get("phase") != "ended":
        lost(directory, number, now, kind)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Let signals that ask for an end wait while the body runs, also for Slurm's commands that it calls."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _scancel(*what: str) -> None:
    """It is judged by what happens: 22.05 may complain and do it all the same."""
    with contextlib.suppress(LaunchFailed):
        client.ask("scancel", *what)


def _wait(number: str, within: float) -> bool:
    """Wait until nothing of the job is there; whether that is known to be so. A controller may be busy for a moment."""
    deadline = time.monotonic() + within
    silent = 0.0
    while time.monotonic() < deadline:
        now = look_at(number)
        if now.asked and (now.job is None or now.job.ended):
            return True
        silent = 0.0 if now.asked else silent or time.monotonic()
        if silent and time.monotonic() - silent > SILENT_S:
            return False
        time.sleep(WAIT_S)
    return False
