"""All runs at once: which serve, which have lost their supervisor, and how to clear those away."""

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from disagg_cli.errors import DisaggError, UsageError
from disagg_cli.runtime import control, rundir
from disagg_cli.runtime.control import Status
from disagg_cli.runtime.elsewhere import GIVEN_UP, only_there
from disagg_cli.runtime.job import number_of
from disagg_cli.runtime.phases import ALIVE
from disagg_cli.runtime.rundir import RunDir
from disagg_cli.runtime.state import is_there


@dataclass(frozen=True, kw_only=True, slots=True)
class Listed:
    """One run of the list."""

    run: RunDir
    status: Status

    @property
    def stale(self) -> bool:
        """Whether what it started may still run, and nobody sees to that: its supervisor is gone before its time, or
        has ended without a host that did not answer. What a Slurm job runs ends with it."""
        if self.status.phase != "ended":
            return self.status.phase == "lost"
        given_up = str(self.status.state["reason"]).startswith(GIVEN_UP)
        return not given_up and not number_of(self.run) and self.alive > 0

    @property
    def alive(self) -> int:
        """How many of its processes are there: on record, and in fact where that can be seen from here."""
        state = self.status.state
        found = [one for one in state["processes"] if one["phase"] in ALIVE and not one.get("gone")]
        if self.status.phase in ("lost", "ended") and only_there(self.run):
            found = [one for one in found if is_there({**state, "pid": one["pid"], "born": one.get("born", 0.0)})]
        return len(found)

    @property
    def ports(self) -> tuple[int, ...]:
        """Where its processes answer HTTP."""
        found = {urlsplit(process["url"]).port for process in self.status.state["processes"]}
        return tuple(sorted(port for port in found if port))

    def document(self) -> dict[str, Any]:
        """The run as JSON."""
        state = self.status.state
        return {
            "run": self.run.path.name,
            "name": state["name"],
            "phase": self.status.phase,
            "since": state["since"],
            "age_s": round(self.status.age(), 1),
            "supervised": self.status.supervised,
            "stale": self.stale,
            "pid": state["pid"],
            "host": state.get("host"),
            "job": (state.get("job") or {}).get("id"),
            "url": state["url"],
            "processes": len(state["processes"]),
            "alive": self.alive,
            "ports": list(self.ports),
            "exit_code": state["exit_code"],
            "directory": str(self.run.path),
        }


def look(*, ended: bool) -> tuple[tuple[Listed, ...], tuple[str, ...]]:
    """The runs of this DISAGG_HOME, newest first, and of those that cannot be read what is wrong with them.

    ended: also those that are over and done with.
    """
    found: list[Listed] = []
    unreadable: list[str] = []
    for run in map(RunDir, sorted((rundir.home() / "runs").glob("*"))):
        try:
            if run.state():  # without one: a launch that has not begun, or none of ours
                found.append(Listed(run=run, status=control.status(run)))
        except UsageError as error:
            unreadable.append(error.what)
    found.sort(key=lambda one: one.status.state["started"], reverse=True)
    return tuple(one for one in found if ended or one.stale or one.status.phase != "ended"), tuple(unreadable)


def clean() -> tuple[dict[str, Any], ...]:
    """End what stale runs have left running; their records stay. Return what was done, run by run."""
    done = []
    for one in look(ended=False)[0]:
        if one.stale:
            try:
                leftovers, error = control.stop(one.run), ""
            except DisaggError as failure:
                leftovers, error = (), failure.what
            done.append({"run": one.run.path.name, "leftovers": list(leftovers), "error": error})
    return tuple(done)
