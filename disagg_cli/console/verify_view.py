"""What the installed connector did, cell by cell, for a person."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from disagg_cli.connector.conformance.verify import Cell
from disagg_cli.connector.releases import Choice


def verify_view(cells: Sequence[Cell], choice: Choice) -> RenderableType:
    """A row for each pair of sides, a column for each number of KV heads, and every disagreement in full."""
    if len(cells) == 1 and cells[0].agrees:
        return Group(*_tables(cells), _only(cells[0], choice))
    return Group(*_tables(cells), *_disagreements(cells), _conclusion(cells, choice))


def _only(cell: Cell, choice: Choice) -> Text:
    """What came of the one plan that was asked for."""
    if cell.right:
        return Text(f"SGLang {choice.sglang} moves every byte of this plan right.", style="bold green")
    text = Text(f"SGLang {choice.sglang} gets this plan wrong, as foreseen: ", style="bold red")
    return text.append(cell.expected.reason, style="")


def _tables(cells: Sequence[Cell]) -> Iterator[RenderableType]:
    for label, group in groupby(cells, key=lambda cell: cell.check.label):
        members = list(group)
        totals = {cell.check.layout.total_kv_heads for cell in members}
        square = len(totals) == 1 and len(members) > 1 and all(_plain(cell) for cell in members)
        yield _square(label, members) if square else _by_heads(label, members)
        yield Text()


def _plain(cell: Cell) -> bool:
    sides = (cell.check.prefill, *cell.check.pools)
    return len(sides) == 2 and all(side.pp == 1 for side in sides)


def _by_heads(label: str, members: Sequence[Cell]) -> RenderableType:
    """A row for each pair of sides, a column for each number of KV heads."""
    totals = sorted({cell.check.layout.total_kv_heads for cell in members})
    table = Table(box=SIMPLE_HEAD, show_edge=False)
    table.add_column(label, no_wrap=True)
    for total in totals:
        table.add_column(f"T {total}")
    for sides, row in groupby(sorted(members, key=_order), key=_sides):
        found = {cell.check.layout.total_kv_heads: cell for cell in row}
        table.add_row(sides, *(_cell(found.get(total)) for total in totals))
    return table


def _square(label: str, members: Sequence[Cell]) -> RenderableType:
    """A row for each prefill TP, a column for each decode TP."""
    found = {(cell.check.prefill.attention_tp, cell.check.pools[0].attention_tp): cell for cell in members}
    table = Table(box=SIMPLE_HEAD, show_edge=False)
    table.add_column(f"{label}, T {members[0].check.layout.total_kv_heads}")
    columns = sorted({decode for _, decode in found})
    for decode in columns:
        table.add_column(f"-> TP{decode}")
    for prefill in sorted({prefill for prefill, _ in found}):
        table.add_row(f"TP{prefill}", *(_cell(found.get((prefill, decode))) for decode in columns))
    return table


def _order(cell: Cell) -> tuple[int, ...]:
    sides = (cell.check.prefill, *cell.check.pools)
    return tuple(number for side in sides for number in (side.pp, side.attention_tp))


def _sides(cell: Cell) -> str:
    one, *rest = (
        f"TP{side.attention_tp}" + (f" PP{side.pp}" if side.pp > 1 else "")
        for side in (cell.check.prefill, *cell.check.pools)
    )
    return f"{one} -> {' and '.join(rest)}"


def _cell(cell: Cell | None) -> Text:
    """Green where every byte is right, yellow for a known fault, red where plan and connector disagree."""
    if cell is None:
        return Text("")
    seen = cell.observed.outcome.value if cell.observed else "not run"
    if not cell.agrees:
        return Text(f"{seen}!", style="bold red")
    return Text(seen, style="green" if cell.right else "yellow")


def _disagreements(cells: Sequence[Cell]) -> Iterator[RenderableType]:
    for cell in cells:
        if not cell.agrees:
            total = cell.check.layout.total_kv_heads
            yield Text(f"{cell.check.label}, {_sides(cell)}, T {total}: {cell.note}", style="red")


def _conclusion(cells: Sequence[Cell], choice: Choice) -> Text:
    agree = sum(cell.agrees for cell in cells)
    faults = sum(cell.agrees and not cell.right for cell in cells)
    judged = f" (judged as {choice.release.name})" if choice.approximate else ""
    text = Text(f"SGLang {choice.sglang}{judged}: {agree} of {len(cells)} plans agree", style="bold")
    return text.append(f", {faults} of them with faults that disagg knows" if faults else "")
