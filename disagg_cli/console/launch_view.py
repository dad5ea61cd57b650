"""What a launch shows: the plan, the commands, a live table of its processes, and where everything is at the end."""

import contextlib
import sys
import time
from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from disagg_cli.console.eval_view import compare_view, eval_view
from disagg_cli.console.plan_view import findings_view, plan_view
from disagg_cli.evals.compare import Comparison
from disagg_cli.evals.report import EvalReport
from disagg_cli.runtime.control import Status
from disagg_cli.runtime.prepare import Prepared
from disagg_cli.runtime.rundir import RunDir
from disagg_cli.runtime.state import Recorder, RunState

COLOURS = {
    "waiting": "dim",
    "starting": "yellow",
    "loading": "yellow",
    "healthy": "cyan",
    "proven": "green",
    "failed": "bold red",
    "stopped": "dim",
}
SHOWN = {"proven": "KV proven"}


def show_plan(prepared: Prepared, out: Console) -> None:
    """The head-slice plan and its verdict, as `disagg plan` shows it, and what `disagg check` has found beside it."""
    for plan in prepared.plans:
        out.print(plan_view(plan))
    shown = {found for plan in prepared.plans for found in plan.findings}
    for line in findings_view([found for found in prepared.findings if found not in shown]):
        out.print(line)


def dry_run(prepared: Prepared) -> RenderableType:
    """Every command line with its environment, as a person would type it."""
    return Text("\n\n".join(f"# {c.name} on {c.host.name}\n{c.shell()}" for c in prepared.commands))


class LaunchView:
    """Shows a run while it goes on: a live table on a terminal, plain lines elsewhere."""

    def __init__(self, recorder: Recorder, out: Console) -> None:
        self.recorder = recorder
        self.out = out
        self._begun = time.monotonic()
        recorder.listeners.append(self._line)

    @contextlib.contextmanager
    def live(self) -> Iterator[None]:
        """Keep the table on screen, below the lines, while the body runs."""
        if not self.out.is_terminal:
            yield
            return
        state = self.recorder.state
        with Live(get_renderable=lambda: _table(state), console=self.out, refresh_per_second=4, transient=True):
            yield

    def report(self, report: EvalReport) -> None:
        """Show an eval's result."""
        self.out.print(eval_view(report))

    def comparison(self, comparison: Comparison) -> None:
        """Show how the answers compare with an aggregated server's."""
        self.out.print(compare_view(comparison))

    def serving(self) -> None:
        """Say where everything is."""
        self.out.print(where_everything_is(self.recorder.directory))

    def _line(self, text: str) -> None:
        self.out.print(f"[dim]{time.monotonic() - self._begun:6.1f} s[/]  ", Text(text), sep="", soft_wrap=True)


def _table(state: RunState) -> RenderableType:
    table = Table(box=None, pad_edge=False)
    for heading in ("process", "phase", "for", "address"):
        table.add_column(heading, justify="right" if heading == "for" else "left")
    now = time.time()
    for process in state.processes.values():
        colour = COLOURS[process.phase]
        phase = f"[{colour}]{SHOWN.get(process.phase, process.phase)}[/]"
        table.add_row(process.name, phase, f"{now - process.since:.0f} s", Text(process.url))
    waiting = f"waiting for {state.waiting_for}, " if state.waiting_for else ""
    return Group(table, Text(f"{state.phase}: {waiting}{now - state.since:.0f} s", style="bold"))


def status_table(status: Status) -> RenderableType:
    """The table of `disagg status`."""
    table = Table(box=None, pad_edge=False)
    for heading in ("process", "phase", "for", "pid", "address"):
        table.add_column(heading)
    state = status.state
    for process in state["processes"]:
        colour, age = COLOURS[process["phase"]], time.time() - process["since"]
        phase = f"[{colour}]{SHOWN.get(process['phase'], process['phase'])}[/]"
        table.add_row(process["name"], phase, f"{age:.0f} s", str(process["pid"] or ""), Text(process["url"]))
    heading = f"{state['run']}: {status.phase}"
    if status.phase == "ended":
        heading += f", exit code {state['exit_code']}: {state['reason']}"
    if status.phase == "lost":
        heading += ", its supervisor is gone; `disagg stop` ends what is left"
    return Group(Text(heading, style="bold"), Text(f"router {state['url']}"), table)


def where_everything_is(directory: RunDir) -> RenderableType:
    """The last screen of a launch that serves."""
    rows = Table.grid(padding=(0, 2))
    rows.add_row("router", Text(f"{directory.read('state.json')['url']}/v1/completions"))
    rows.add_row("run", Text(str(directory.path)))
    rows.add_row("logs", Text("disagg logs [WORKER] [-f]"))
    rows.add_row("eval", "disagg eval gsm8k")
    rows.add_row("stop", "disagg stop, or Ctrl-C where it was launched")
    return rows


def print_log_line(process: str, line: str, *, prefix: bool) -> None:
    """Print one line of a log on stdout, as it is."""
    sys.stdout.write(f"{process:<12} | {line}\n" if prefix else f"{line}\n")
    sys.stdout.flush()
