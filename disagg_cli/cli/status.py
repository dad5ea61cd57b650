"""`disagg status`, `ps`, `logs` and `stop`: what runs are doing, from any terminal."""

from typing import Annotated

import typer

from disagg_cli.cli.options import Json, Run


def status(
    run: Run = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on until the run has ended.")] = False,
    as_json: Json = False,
) -> None:
    """Show what the last run, or another one, is doing."""
    from disagg_cli.console.sink import console, show
    from disagg_cli.console.status_view import show_watched, status_table
    from disagg_cli.runtime import control, rundir

    directory = rundir.find(run)
    now = show_watched(control.watch(directory), console(as_json=as_json)) if watch else control.status(directory)
    if as_json or not watch:
        show(status_table(now), now.document(), as_json=as_json)


def ps(
    ended: Annotated[bool, typer.Option("--all", "-a", help="Also runs that have ended.")] = False,
    clean: Annotated[
        bool, typer.Option("--clean", help="End what is left of runs whose supervisor is gone; keep their records.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List the runs of this machine: what they do, since when, and which have lost their supervisor, or left workers.

    With --clean, exit code 4 if something is left of one of them.
    """
    from disagg_cli.console.sink import show
    from disagg_cli.console.status_view import runs_table
    from disagg_cli.errors import LaunchFailed
    from disagg_cli.runtime import listing

    cleaned = listing.clean() if clean else ()
    found, unreadable = listing.look(ended=ended)
    document = {
        "schema": "disagg.ps/1",
        "runs": [one.document() for one in found],
        "cleaned": list(cleaned),
        "unreadable": list(unreadable),
    }
    show(runs_table(found, cleaned, unreadable), document, as_json=as_json)
    if any(one["error"] for one in cleaned):
        raise typer.Exit(LaunchFailed.exit_code)


def logs(
    worker: Annotated[str | None, typer.Argument(help="One process; all without it.", show_default=False)] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run has ended.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="How many last lines of each log.")] = 20,
    run: Run = None,
    as_json: Json = False,
) -> None:
    """Show the logs of a run's processes."""
    from disagg_cli.console.sink import write_json
    from disagg_cli.console.status_view import print_log_line
    from disagg_cli.errors import UsageError
    from disagg_cli.runtime import control, rundir

    if follow and as_json:
        raise UsageError("--json prints one document, and --follow has no end", fix="leave one of them out")
    directory = rundir.find(run)
    found = control.read_logs(directory, worker, lines=lines, follow=follow)
    if as_json:
        shown = [{"process": name, "line": line} for name, line in found]
        write_json({"schema": "disagg.logs/1", "run": directory.path.name, "lines": shown})
        return
    for name, line in found:
        print_log_line(name, line, prefix=worker is None)


def stop(
    run: Run = None,
    force: Annotated[
        bool, typer.Option("--force", help="Ask no supervisor: it is on a host that is gone, or does not listen.")
    ] = False,
    as_json: Json = False,
) -> None:
    """End a run and every process of it."""
    from disagg_cli.console.sink import show
    from disagg_cli.runtime import control, rundir
    from disagg_cli.runtime.elsewhere import GIVEN_UP

    directory = rundir.find(run)
    before = directory.state().get("phase")
    leftovers = control.stop(directory, force=force)
    document = control.summary(directory) | {"schema": "disagg.stop/1", "leftovers": list(leftovers)}
    text = f"{directory.path.name} has ended"
    if before == "ended" and not leftovers:
        text = f"{directory.path.name} had ended before; `disagg ps` lists the runs that go on"
    if str(document["reason"]).startswith(GIVEN_UP):
        text = f"{directory.path.name} is {document['reason']}"
    elif leftovers:
        text += f"; its supervisor was gone, so these were killed: {', '.join(leftovers)}"
    if document["phase"] != "ended":
        text += "; that cannot be written down (a full disk?), so `disagg ps` lists it until it is stopped once more"
    show(text, document, as_json=as_json)
