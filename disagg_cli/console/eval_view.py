"""How an eval looks while it runs and when it is done."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table

from disagg_cli.evals.report import EvalReport
from disagg_cli.evals.run import Progress
from disagg_cli.evals.states import State
from disagg_cli.evals.statistics import Outcome, wilson
from disagg_cli.evals.timing import Percentiles

_COLOURS = {Outcome.PASS: "green", Outcome.FAIL: "red"}
_BETWEEN_LINES_S = 10.0
_LATENCIES = {
    "first_token": "first token",
    "second_token_gap": "first to second token",
    "inter_token": "between tokens",
    "per_output_token": "per output token",
    "end_to_end": "whole answer",
}


@contextmanager
def following(url: str) -> Iterator[Callable[[Progress], None]]:
    """Show progress on stderr: a bar on a terminal, else a line every 10 s. Yields what to call at each step."""
    if not sys.stderr.isatty():
        yield _Lines(url)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("GSM8K"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[state]}"),
    )
    with Bar(*columns, console=Console(stderr=True), refresh_per_second=5) as bar:
        task = bar.add_task("", total=None, state="")

        def advance(now: Progress) -> None:
            bar.update(task, total=now.planned, completed=now.done, state=_standing(now))

        yield advance


class _Lines:
    """One line now and then, for logs."""

    def __init__(self, url: str) -> None:
        self._next = time.monotonic() + _BETWEEN_LINES_S
        self._url = url

    def __call__(self, now: Progress) -> None:
        if now.done < now.planned and time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _BETWEEN_LINES_S
        sys.stderr.write(f"gsm8k {now.done}/{now.planned} {now.elapsed_s:.0f}s {_standing(now)}\n")


def _standing(now: Progress) -> str:
    lost = "".join(f", {now.counts[state]} {state}" for state in (State.ERROR, State.TIMEOUT) if now.counts[state])
    speed = now.output_tokens / now.elapsed_s if now.elapsed_s else 0.0
    return f"{now.right} right{lost}, {now.in_flight} in flight, {speed:,.0f} token/s"


def eval_view(report: EvalReport, folder: Path | None = None) -> RenderableType:
    """The result: verdict, score, states, times, failures, and where the files are."""
    parts: list[RenderableType] = [_head(report), _score(report), _states(report.counts)]
    if report.answered:
        parts.append(_latency(report.latency))
        parts.append(_speed(report))
    parts += [f"[yellow]note:[/] {escape(note)}" for note in report.notes]
    if report.failures:
        parts.append(_failures(report))
    if folder:
        parts.append(f"samples and summary: {escape(str(folder))}")
    return Group(*parts)


def _head(report: EvalReport) -> str:
    verdict = report.verdict
    colour = _COLOURS.get(verdict.outcome, "yellow")
    lines = [f"[bold {colour}]{verdict.outcome}[/]  {escape(verdict.reason)}"]
    if verdict.detectable_drop is not None:
        lines.append(f"{report.answered} answers can show a drop of {100 * verdict.detectable_drop:.1f} points")
    if verdict.needed:
        lines.append(f"{verdict.needed} answers of the same accuracy would decide")
    return "\n".join(lines)


def _score(report: EvalReport) -> str:
    identity = report.identity
    what = f"{identity.dataset}, {identity.prompt}, {escape(identity.model)}"
    if report.accuracy is None:
        return f"accuracy unknown: no answer ({what})"
    low, high = wilson(report.right, report.answered)
    return (
        f"accuracy [bold]{report.accuracy:.4f}[/] of {report.answered} answered (95 %: {low:.3f} to {high:.3f}), "
        f"{report.accuracy_planned:.4f} of {report.planned} planned ({what})"
    )


def _states(counts: Mapping[State, int]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for state in State:
        table.add_column(state.value, justify="right")
    table.add_row(*(str(counts[state]) for state in State))
    return table


def _latency(latency: Mapping[str, Percentiles | None]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("milliseconds", "p50", "p90", "p99", "max", "n"):
        table.add_column(name, justify="left" if name == "milliseconds" else "right")
    for name, title in _LATENCIES.items():
        if entry := latency.get(name):
            table.add_row(title, *map(_ms, (entry.p50, entry.p90, entry.p99, entry.max)), str(entry.n))
    return table


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:,.1f}"


def _speed(report: EvalReport) -> str:
    cached = (
        ""
        if report.cached_tokens is None
        else f", {report.cached_tokens:,} of {report.prompt_tokens:,} prompt tokens cached"
    )
    return (
        f"{report.output_throughput:,.1f} output token/s, {report.requests_per_second:,.2f} answers/s, "
        f"{report.wall_s:.2f} s in all{cached}"
    )


def _failures(report: EvalReport) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("failed", "as", "message", "first request", "room"):
        table.add_column(name, overflow="fold")
    for entry in report.failures:
        room = entry.rooms[0] if entry.rooms else ""
        table.add_row(str(entry.count), f"{entry.state} ({entry.kind})", escape(entry.message), entry.rids[0], room)
    return table
