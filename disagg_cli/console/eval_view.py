"""How an eval looks while it runs and when it is done."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from disagg_cli.console.sink import console
from disagg_cli.evals.report import EvalReport
from disagg_cli.evals.run import Progress
from disagg_cli.evals.served import Counters
from disagg_cli.evals.states import State
from disagg_cli.evals.statistics import Outcome, wilson
from disagg_cli.evals.timing import LATENCIES, Percentiles

if TYPE_CHECKING:
    from disagg_cli.evals.compare import Comparison, Difference

_COLOURS = {Outcome.PASS: "green", Outcome.FAIL: "red"}
_BETWEEN_LINES_S = 10.0
_DIFFERENCES_SHOWN = 20


@contextmanager
def following() -> Iterator[Callable[[Progress], None]]:
    """Show progress on stderr: a bar on a terminal, else a line every 10 s. Yields what to call at each step."""
    if not sys.stderr.isatty():
        yield _Lines()
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
    with Bar(*columns, console=console(as_json=True, lasting=True), refresh_per_second=5) as bar:
        task = bar.add_task("", total=None, state="")

        def advance(now: Progress) -> None:
            bar.update(task, total=now.planned, completed=now.done, state=_standing(now))

        yield advance


class _Lines:
    """One line now and then, for logs."""

    def __init__(self) -> None:
        self._next = time.monotonic() + _BETWEEN_LINES_S
        self._out = console(as_json=True, lasting=True)

    def __call__(self, now: Progress) -> None:
        if now.done < now.planned and time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _BETWEEN_LINES_S
        line = f"gsm8k {now.done}/{now.planned} {now.elapsed_s:.0f}s {_standing(now)}"
        self._out.print(line, markup=False, soft_wrap=True)


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
        parts.append(_order(report))
    parts += [f"[yellow]note:[/] {escape(note)}" for note in report.facts.notes]
    if report.failures:
        parts.append(_failures(report))
    if report.facts.counters:
        parts.append(_counters(report.facts.counters))
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
    for name, title in LATENCIES.items():
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


def _order(report: EvalReport) -> str:
    quarters = ", ".join(f"{share.right}/{share.answered}" for share in report.quarters)
    ranks = ", ".join(f"rank {rank} {share.right}/{share.answered}" for rank, share in report.by_rank.items())
    flags = ", ".join(
        f"{count} {name}" for name, count in (("repetitive", report.repetition), ("empty", report.empty)) if count
    )
    parts = [f"right by quarter of completion: {quarters}", f"by decode {ranks}" if ranks else "", flags]
    return "; ".join(filter(None, parts))


def _counters(counters: Sequence[Counters]) -> Table:
    """What the run did to the workers' counters; a queue that is not empty again is red."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("worker", "counters", "left in PD queues"):
        table.add_column(name, overflow="fold")
    for entry in counters:
        deltas = ", ".join(f"{_short(name)} {delta:+,.0f}" for name, delta in entry.deltas.items() if delta)
        left = ", ".join(f"[red]{_short(name)} {count:g}[/]" for name, count in entry.leaked.items())
        before, after = entry.told
        silent = "[red]tells them no more[/]" if before else "told none"
        table.add_row(escape(entry.worker), deltas if after else silent, left or "none" * after)
    return table


def _short(name: str) -> str:
    return name.removeprefix("sglang:").removesuffix("_total")


def compare_view(comparison: "Comparison", folder: Path | None = None) -> RenderableType:
    """Two runs: verdict, counts, and where answers differ."""
    colour = _COLOURS.get(comparison.outcome, "yellow")
    identical = "" if comparison.identical_share is None else f" ({comparison.identical_share:.1%})"
    head = (
        f"[bold {colour}]{comparison.outcome}[/]  {escape(comparison.reason)}\n"
        f"{comparison.pairs} questions answered in both: {comparison.identical} identical{identical}, "
        f"{comparison.lost} lost, {comparison.gained} gained (p = {comparison.p_value:.3g})\n"
        f"right: {comparison.right_before} before, {comparison.right_after} now; "
        f"failed: {comparison.failed_before} before, {comparison.failed_after} now"
    )
    parts: list[RenderableType] = [head]
    for name, title in LATENCIES.items():
        if found := comparison.latency.get(name):
            parts.append(f"{title}, p50: {_ms(found[0])} ms before, {_ms(found[1])} ms now")
    if comparison.prompt_tokens_differ:
        parts.append(f"[red]{comparison.prompt_tokens_differ} prompts were counted differently by the two servers[/]")
    if comparison.differences:
        parts.append(_differences(comparison.differences))
    if folder:
        parts.append(f"both runs and comparison.json: {escape(str(folder))}")
    return Group(*parts)


def _differences(differences: Sequence["Difference"]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("differs", "flip", "from token", "answer before", "now", "text before", "text now"):
        table.add_column(name, overflow="fold")
    for found in differences[:_DIFFERENCES_SHOWN]:
        token = f"character {found.character}" if found.token is None else str(found.token)
        around = (escape(repr(text)) for text in found.around)
        table.add_row(found.id, found.flip or "", token, found.before or "none", found.after or "none", *around)
    if len(differences) > _DIFFERENCES_SHOWN:
        table.add_row(f"and {len(differences) - _DIFFERENCES_SHOWN} more", *[""] * 6)
    return table


def score_view(document: Mapping[str, Any]) -> RenderableType:
    """Stored completions, scored again: the counts; single rows are for `--json`."""
    counts = {State(name): count for name, count in document["counts"].items()}
    shares = ", ".join(
        f"{title} {document[name]:.4f}"
        for name, title in (("accuracy", "accuracy"), ("accuracy_strict", "strict"), ("accuracy_planned", "of planned"))
        if document[name] is not None
    )
    return Group(
        f"{document['answered']} of {document['planned']} answered; {shares} ({document['scorer']})", _states(counts)
    )


def _failures(report: EvalReport) -> str:
    """A line for each kind of failure: a message is too long for a column."""
    lines = []
    for entry in report.failures:
        room = f", bootstrap room {entry.rooms[0]}" if entry.rooms else ""
        lines.append(
            f"[red]{entry.count} {entry.state}[/] ({entry.kind}): {escape(entry.message)} "
            f"\\[first: {entry.rids[0]}{room}]"
        )
    return "\n".join(lines)
