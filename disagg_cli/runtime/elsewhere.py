"""A run whose supervisor is on another host of the same home: what can be known of it here, and how it is ended."""

import socket
import time
from collections.abc import Mapping
from typing import Any

from disagg_cli.errors import UsageError
from disagg_cli.executors.slurm import client
from disagg_cli.runtime import job
from disagg_cli.runtime.rundir import RunDir
from disagg_cli.runtime.state import is_there

LOOK_S = 0.2
GIVEN_UP = "given up"
"""How the reason begins where a run is taken for ended whose processes nobody here can see."""
IF_GONE = "if that is gone, `disagg stop --force` writes down that the run has ended"


def is_elsewhere(state: Mapping[str, Any]) -> bool:
    """Whether another host supervises a run, or did."""
    return bool(state.get("host", socket.gethostname()) != socket.gethostname()) and not is_there(state)


def job_that_knows(run: RunDir, state: Mapping[str, Any]) -> str | None:
    """The Slurm job that tells whether a run is supervised: the one that does so, or one that holds what does."""
    around = job.around(run)
    return job.number_of(run) or (around.job if around and is_elsewhere(state) else None)


def only_there(run: RunDir) -> bool:
    """Whether the processes of a run can be reached from its supervisor's host alone."""
    return bool(run.read("deployment.json").get("executor", "local") == "local")


def given_up(state: Mapping[str, Any]) -> str:
    """Why a run is taken for ended of which nobody here can know whether it has."""
    return f"{GIVEN_UP}: only on {state['host']} can be seen whether its processes still run"


def see_to_its_end(run: RunDir, state: Mapping[str, Any], *, within: float, force: bool) -> None:
    """See that the supervisor ends the run, or that it may be ended without it. UsageError if neither.

    In a Slurm job it is reached through that. force: do not ask it; where nothing but it can be asked, give the run up.
    """
    host, around = state["host"], job.around(run)
    reached = around is not None and around.node != ""
    if around and reached and not force and client.signal_on(around.node, around.job, state["pid"], "TERM"):
        ends(run, within=within)
    elif not force and not reached and not only_there(run):
        raise UsageError(
            f"{run.path.name} is supervised on {host}",
            fix=f"run `disagg stop` on {host}; if that is gone, `disagg stop --force` ends the processes from here",
        )
    if only_there(run) and run.state()["phase"] != "ended" and (around or not force):
        there = f"end its Slurm job: scancel {around.job}" if around else IF_GONE
        raise UsageError(
            f"the processes of {run.path.name} run on {host}, and only there they can be ended",
            fix=f"run it on {host}, or {there}",
        )


def ends(run: RunDir, *, within: float) -> bool:
    """Wait until a run's supervisor has said that it has ended; whether it has."""
    deadline = time.monotonic() + within
    while run.state()["phase"] != "ended":
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK_S)
    return True
