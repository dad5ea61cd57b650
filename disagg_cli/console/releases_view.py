"""Releases for a person: one plan on each of them, and what each of them does."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from disagg_cli.connector.case import Outcome
from disagg_cli.connector.classes import CLASSES, SizeClass
from disagg_cli.connector.releases import Release
from disagg_cli.connector.verdict import Verdict
from disagg_cli.connector.verified import Run, Verified
from disagg_cli.findings.report import PlanReport, PoolReport

_LETTERS: Mapping[Outcome, tuple[str, str]] = {
    Outcome.OK: ("\N{CHECK MARK}", "right"),
    Outcome.WRONG_BYTES: ("W", "wrong bytes, silently"),
    Outcome.EARLY_DONE: ("E", "done before all KV is there"),
    Outcome.HANG: ("h", "hangs 300 s, health stays green"),
    Outcome.NOT_FOUND: ("n", "NIXL_ERR_NOT_FOUND at the first request, then as h"),
    Outcome.EMPTY_TRANSFER: ("m", "an empty transfer list, then as h"),
    Outcome.ASSERTION: ("a", "an assertion fails, then as h"),
    Outcome.RUNTIME_ERROR: ("r", "refused with an exception; the client sees a hang"),
    Outcome.ZERO_DIVISION: ("z", "the prefill server dies (ZeroDivisionError)"),
    Outcome.UNSUPPORTED: ("?", "not studied, or not possible"),
}
REPAIRED = "+"


def plan_releases_view(report: PlanReport) -> RenderableType:
    """One plan on every known release; neighbours that do the same share a row."""
    return Group(*(part for pool in report.pools for part in _pool(report, pool)))


def _pool(report: PlanReport, pool: PoolReport) -> Iterator[RenderableType]:
    p, d = report.prefill.attention_tp, pool.decode.attention_tp
    sizes = f"{report.layout.name}, attention TP{p} -> TP{d}, {report.prefill.pp} -> {pool.decode.pp} stages"
    yield Text(sizes, style="bold")
    table = Table(box=SIMPLE_HEAD, show_edge=False)
    table.add_column("SGLang", no_wrap=True)
    table.add_column("outcome", no_wrap=True)
    table.add_column("why")
    repaired = pool.repaired_releases or {}
    verdicts = pool.releases or {}
    for same in _spans(verdicts):
        names = [name for name, _ in same]
        verdict = same[0][1]
        chosen = report.choice.release.name in names
        span = names[0] if len(names) == 1 else f"{names[0]} - {names[-1]}"
        table.add_row(
            Text(f"{'*' if chosen else ' '} {span}", style="bold" if chosen else ""),
            Text(verdict.outcome.value, style=_style(verdict.outcome)),
            verdict.reason + _overlay([repaired.get(name) for name in names], stock=verdict),
        )
    yield table
    minimum = pool.verdict.minimum_release
    yield Text(f"Right from {minimum} on." if minimum else "No release through the newest known is right.")
    yield Text(f"* SGLang {report.choice.sglang}, {report.choice.origin.value}", style="dim")


def _overlay(repaired: Sequence[Verdict | None], *, stock: Verdict) -> str:
    """Say where the overlay repairs what the stock connector gets wrong."""
    return " (right with disagg's overlay)" if not stock.ok and all(one and one.ok for one in repaired) else ""


def _spans(verdicts: Mapping[str, Verdict]) -> Iterator[list[tuple[str, Verdict]]]:
    for _, group in groupby(verdicts.items(), key=lambda item: (item[1].outcome, item[1].reason)):
        yield list(group)


def releases_view(
    rows: Sequence[tuple[Release, Mapping[SizeClass, Verdict]]], verified: Mapping[str, Verified]
) -> RenderableType:
    """Every known release against every class of plans, what each class is, and what was executed."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("SGLang", no_wrap=True)
    for size_class in CLASSES:
        table.add_column(size_class.letter, justify="center", no_wrap=True)
    for release, verdicts in rows:
        executed = verified.get(release.name)
        cells = (_executed_cell(one.letter, verdicts[one].outcome, executed) for one in CLASSES)
        table.add_row(release.name, *cells)
    legend = Table.grid(padding=(0, 2, 0, 0))
    for size_class in CLASSES:
        legend.add_row(Text(size_class.letter, style="bold"), size_class.meaning, Text(size_class.example, style="dim"))
    outcomes = Table.grid(padding=(0, 2, 0, 0))
    for outcome, (letter, meaning) in _LETTERS.items():
        outcomes.add_row(Text(letter, style=_style(outcome)), Text(meaning, style="dim"))
    outcomes.add_row(Text(REPAIRED, style="green"), Text("right with disagg's overlay, as executed", style="dim"))
    outcomes.add_row(Text("x", style="dim"), Text("not executed: read in the release's code", style="dim"))
    return Group(table, Text(), legend, Text(), outcomes, Text(), _plans_run(verified.values()))


def _executed_cell(letter: str, outcome: Outcome, executed: Verified | None) -> Text:
    """An outcome, marked where the overlay repairs it, and dim where it was not executed."""
    stock, overlay = (run.classes.get(letter) if run else None for run in _runs(executed))
    text = _cell(outcome) if stock is outcome else Text(_LETTERS[outcome][0], style="dim")
    repaired = stock is outcome and outcome is not Outcome.OK and overlay is Outcome.OK
    return text.append(REPAIRED, style="green") if repaired else text


def _plans_run(verified: Iterable[Verified]) -> Text:
    """How many plans were executed in all, and how many of them did what the table says."""
    runs = [run for executed in verified for run in _runs(executed) if run]
    plans, agree = sum(run.plans for run in runs), sum(run.agree for run in runs)
    return Text(
        f"Executed: {plans:,} plans on the releases' own code, stock and with the overlay (make verify-releases); "
        f"{agree:,} did what disagg says of them."
    )


def _runs(executed: Verified | None) -> tuple[Run | None, Run | None]:
    return (executed.stock, executed.overlay) if executed else (None, None)


def _cell(outcome: Outcome) -> Text:
    return Text(_LETTERS[outcome][0], style=_style(outcome))


def _style(outcome: Outcome) -> str:
    if outcome is Outcome.OK:
        return "green"
    return "bold red" if outcome in (Outcome.WRONG_BYTES, Outcome.EARLY_DONE) else "yellow"
