"""What a launch shows: the plan, the commands, a live table of its processes, and where everything is at the end."""

import contextlib
import time
from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from disagg_cli.console.eval_view import compare_view, eval_view
from disagg_cli.console.plan_view import findings_view, plan_view
from disagg_cli.console.status_view import below, phase_text, process_table, troubles
from disagg_cli.evals.compare import Comparison
from disagg_cli.evals.report import EvalReport
from disagg_cli.runtime.prepare import Prepared
from disagg_cli.runtime.rundir import RunDir
from disagg_cli.runtime.state import Recorder, RunState


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
        with below(self.out, lambda: _table(self.recorder.state)):
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
    table = process_table("address")
    for process in state.processes.values():
        table.add_row(
            process.name, phase_text(process.phase, process.role), f"{state.age(process):.0f} s", Text(process.url)
        )
    waiting = f"waiting for {state.waiting_for}, " if state.waiting_for else ""
    doing = Text(f"{state.phase}: {waiting}{state.age(state):.0f} s", style="bold")
    return Group(table, doing, *troubles(state.disk))


def where_everything_is(directory: RunDir) -> RenderableType:
    """The last screen of a launch that serves."""
    rows = Table.grid(padding=(0, 2))
    rows.add_column()
    rows.add_column(overflow="fold")
    rows.add_row("router", Text(f"{directory.state()['url']}/v1/completions"))
    rows.add_row("run", Text(str(directory.path)))
    rows.add_row("logs", Text("disagg logs [WORKER] [-f]"))
    rows.add_row("eval", "disagg eval gsm8k")
    rows.add_row("stop", "disagg stop, or Ctrl-C where it was launched")
    return rows
