"""`disagg status`: what a run is doing."""

from typing import Annotated

import typer

from disagg_cli.cli.options import Json, Run


def status(run: Run = None, as_json: Json = False) -> None:
    """Show what the last run, or another one, is doing."""
    from disagg_cli.console.launch_view import status_table
    from disagg_cli.console.sink import show
    from disagg_cli.runtime import control, rundir

    now = control.status(rundir.find(run))
    show(status_table(now), now.document(), as_json=as_json)


def logs(
    worker: Annotated[str | None, typer.Argument(help="One process; all without it.", show_default=False)] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run has ended.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="How many last lines of each log.")] = 20,
    run: Run = None,
) -> None:
    """Show the logs of a run's processes."""
    from disagg_cli.console.launch_view import print_log_line
    from disagg_cli.runtime import control, rundir

    directory = rundir.find(run)
    for name, line in control.read_logs(directory, worker, lines=lines, follow=follow):
        print_log_line(name, line, prefix=worker is None)


def stop(run: Run = None, as_json: Json = False) -> None:
    """End a run and every process of it."""
    from disagg_cli.console.sink import show
    from disagg_cli.runtime import control, rundir

    directory = rundir.find(run)
    leftovers = control.stop(directory)
    text = f"{directory.path.name} has ended"
    if leftovers:
        text += f"; its supervisor was gone, so these were killed: {', '.join(leftovers)}"
    show(text, control.summary(directory) | {"leftovers": list(leftovers)}, as_json=as_json)
