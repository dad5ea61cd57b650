"""Releases for a person: one plan on each of them, and what each of them does."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from disagg_cli.connector.case import Outcome
from disagg_cli.connector.classes import CLASSES, SizeClass
from disagg_cli.connector.releases import Release
from disagg_cli.connector.verdict import Verdict
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


def releases_view(rows: Sequence[tuple[Release, Mapping[SizeClass, Verdict]]]) -> RenderableType:
    """Every known release against every class of plans, and what each class is."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("SGLang", no_wrap=True)
    for size_class in CLASSES:
        table.add_column(size_class.letter, justify="center", no_wrap=True)
    for release, verdicts in rows:
        cells = (_cell(verdicts[size_class].outcome) for size_class in CLASSES)
        table.add_row(release.name, *cells)
    legend = Table.grid(padding=(0, 2, 0, 0))
    for size_class in CLASSES:
        legend.add_row(Text(size_class.letter, style="bold"), size_class.meaning, Text(size_class.example, style="dim"))
    outcomes = Table.grid(padding=(0, 2, 0, 0))
    for outcome, (letter, meaning) in _LETTERS.items():
        outcomes.add_row(Text(letter, style=_style(outcome)), Text(meaning, style="dim"))
    return Group(table, Text(), legend, Text(), outcomes)


def _cell(outcome: Outcome) -> Text:
    return Text(_LETTERS[outcome][0], style=_style(outcome))


def _style(outcome: Outcome) -> str:
    if outcome is Outcome.OK:
        return "green"
    return "bold red" if outcome in (Outcome.WRONG_BYTES, Outcome.EARLY_DONE) else "yellow"
