"""What runs are doing, as other terminals ask for it: `disagg status`, `disagg ps`, `disagg logs`."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from disagg_cli.console.units import duration
from disagg_cli.runtime.control import Status
from disagg_cli.runtime.listing import Listed
from disagg_cli.runtime.phases import Phase

COLOURS: Mapping[Phase, str] = {
    "waiting": "dim",
    "starting": "yellow",
    "loading": "yellow",
    "healthy": "cyan",
    "proven": "green",
    "failed": "bold red",
    "stopped": "dim",
}


def status_table(status: Status) -> RenderableType:
    """The table of `disagg status`."""
    table = process_table("pid", "address")
    state = status.state
    for process in state["processes"]:
        seconds = f"{status.age(process):.0f} s"
        table.add_row(
            process["name"],
            phase_text(process["phase"], process["role"]),
            seconds,
            str(process["pid"] or ""),
            Text(process["url"]),
        )
    heading = f"{state['run']}: {status.phase}"
    if status.phase == "ended":
        heading += f", exit code {state['exit_code']}: {state['reason']}"
    elif status.phase == "lost":
        heading += ", its supervisor is gone; `disagg stop` ends what is left"
    else:
        heading += f" for {status.age():.0f} s"
        if status.suspended:
            job = state.get("job")
            wakes = f"scontrol resume {job['id']}" if job else f"kill -CONT {state['pid']}"
            heading += f", its supervisor is suspended and sees nothing (`{wakes}` wakes it)"
        heading += f", waiting for {state['waiting_for']}" if state["waiting_for"] else ""
    if restarts := state.get("restarts"):
        heading += f"; started again {restarts} time{'s' * (restarts > 1)}"
    return Group(Text(heading, style="bold"), Text(f"router {state['url']}"), table, *troubles(status.disk))


def show_watched(found: Iterator[Status], out: Console) -> Status:
    """Show a run until it is over: a live table on a terminal, elsewhere a table whenever a phase has changed."""
    now = next(found)
    if out.is_terminal:
        with Live(status_table(now), console=out, auto_refresh=False) as live:
            for now in found:
                live.update(status_table(now), refresh=True)
        return now
    out.print(status_table(now))
    for later in found:
        if _phases(later) != _phases(now):
            out.print(status_table(later))
        now = later
    return now


@contextlib.contextmanager
def below(out: Console, table: Callable[[], RenderableType]) -> Iterator[None]:
    """Keep a table on screen, below the lines that are printed while the body runs; nothing where it is no terminal."""
    if not out.is_terminal:
        yield
        return
    with Live(get_renderable=table, console=out, refresh_per_second=4, transient=True):
        yield


def _phases(status: Status) -> list[str]:
    return [status.phase, *(process["phase"] for process in status.state["processes"])]


def runs_table(
    runs: Sequence[Listed], cleaned: Sequence[Mapping[str, Any]], unreadable: Sequence[str] = ()
) -> RenderableType:
    """The table of `disagg ps`, what `--clean` has done, and which runs cannot be told of."""
    done = [Text(_cleaned(one)) for one in cleaned]
    odd = [Text(one, style="bold red") for one in unreadable]
    if not runs:
        return Group(*done, Text("no run is going on; `disagg ps --all` also lists those that have ended"), *odd)
    table = Table(box=None, pad_edge=False)
    table.add_column("run", no_wrap=True)  # whole, as --run wants it
    for heading in ("phase", "for", "supervisor", "processes", "ports"):
        table.add_column(heading)
    for one in runs:
        status, state = one.status, one.status.state
        supervisor = str(state["pid"]) if status.supervised else "gone" if one.stale else ""
        supervisor += ", suspended" if status.suspended else ""
        where = f" on {state['host']}" if status.elsewhere else ""
        where += f", Slurm job {job['id']}" if (job := state.get("job")) else ""
        table.add_row(
            one.run.path.name,
            Text(f"{status.phase}", style="bold red" if one.stale else ""),
            duration(status.age()),
            supervisor + where,
            f"{one.alive} of {len(state['processes'])}",
            Text(" ".join(map(str, one.ports))),
        )
    stale = [one for one in runs if one.stale]
    hint = [Text("`disagg ps --clean` ends what is left of runs that nobody supervises")] if stale else []
    return Group(*done, table, *hint, *odd)


def _cleaned(one: Mapping[str, Any]) -> str:
    if one["error"]:
        return f"{one['run']}: {one['error']}"
    return f"{one['run']}: " + (
        f"ended {', '.join(one['leftovers'])}" if one["leftovers"] else "nothing was left of it"
    )


def process_table(*more: str) -> Table:
    """An empty table of processes."""
    table = Table(box=None, pad_edge=False)
    for heading in ("process", "phase", "for", *more):
        table.add_column(heading)
    return table


def phase_text(phase: Phase, role: str) -> str:
    """The phase of a process in its colour, with what is proven of it."""
    proven = "answers" if role == "router" else "KV proven"
    return f"[{COLOURS[phase]}]{proven if phase == 'proven' else phase}[/]"


def troubles(disk: str) -> list[Text]:
    """A line in red where something is wrong with the disk."""
    return [Text(disk, style="bold red")] if disk else []


def print_log_line(process: str, line: str, *, prefix: bool) -> None:
    """Print one line of a log on stdout, as it is."""
    sys.stdout.write(f"{process:<12} | {line}\n" if prefix else f"{line}\n")
    sys.stdout.flush()
