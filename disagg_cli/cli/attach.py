"""`disagg attach`: another terminal's view of a launch."""

from typing import Annotated

import typer

from disagg_cli.cli.options import Json
from disagg_cli.errors import Interrupted


def attach(
    run: Annotated[
        str | None,
        typer.Argument(help="Name of a run, or of a topology; else the last run.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Follow a run from its beginning to its end, as its launch shows it; Ctrl-C only ends the view.

    The exit code is that of the run. `disagg logs -f` shows what its processes say.
    """
    from disagg_cli.console.attach_view import show_attached
    from disagg_cli.console.sink import console, write_json
    from disagg_cli.runtime import job, rundir
    from disagg_cli.runtime.control import summary
    from disagg_cli.runtime.follow import Follower

    directory = rundir.find(run)
    try:
        show_attached(Follower(directory), console(as_json=as_json))
    except Interrupted:
        if directory.state().get("phase") == "ended":
            raise
        name = directory.path.name
        raise Interrupted(f"detached from {name}, which goes on", fix=f"disagg stop --run {name} ends it") from None
    state = directory.state()
    if state["exit_code"]:
        raise job.ended(directory, state)
    if as_json:
        write_json(summary(directory))
