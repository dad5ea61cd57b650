"""`disagg launch` on a login node: the run goes on in a Slurm job, and is shown here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from disagg_cli.errors import Interrupted

if TYPE_CHECKING:
    from rich.console import Console

    from disagg_cli.runtime.prepare import Prepared
    from disagg_cli.runtime.rundir import RunDir


def in_job() -> bool:
    """Whether this process is in a Slurm allocation already."""
    import os

    from disagg_cli.executors.slurm.nodes import inside

    return inside(os.environ)


def submitted(prepared: Prepared, flags: list[str], out: Console, *, detach: bool, as_json: bool) -> None:
    """Submit a run, and show what it does: until it serves with `detach`, else until it has ended."""
    from disagg_cli.console.launch_view import where_everything_is
    from disagg_cli.console.sink import write_json
    from disagg_cli.executors.slurm import client
    from disagg_cli.runtime import evaluation, job, rundir
    from disagg_cli.runtime.control import summary
    from disagg_cli.runtime.follow import Follower
    from disagg_cli.runtime.submission import submit

    client.require()
    evaluation.check(prepared)
    directory = rundir.create(prepared.deployment.name)
    number = submit(prepared, directory, flags)
    serves = False
    try:
        follower = Follower(directory)
        for event in follower.until("serving", "ended"):
            out.print(event["text"], markup=False)
        if serves := directory.state()["phase"] == "serving":
            out.print(where_everything_is(directory))
        for event in () if detach else follower.until("ended"):
            out.print(event["text"], markup=False)
    except Interrupted:
        _stop(directory, number, out)
        if directory.state()["exit_code"] != 0:  # one that served has ended as it should
            raise
    if not (detach and serves):
        job.raise_failure(directory, number)
    if as_json:
        write_json(summary(directory))


def _stop(directory: RunDir, number: str, out: Console) -> None:
    """The first Ctrl-C asks the run to end, a second one has Slurm end its job."""
    from disagg_cli.runtime import job

    try:
        out.print(f"stopping the run of Slurm job {number}; once more, and the job is cancelled")
        job.stop(directory, number)
    except Interrupted:
        job.stop(directory, number, at_once=True)
