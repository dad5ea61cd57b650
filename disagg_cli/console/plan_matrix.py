"""The plan as a matrix: prefill ranks down, decode ranks across, each cell the heads that go from one to the other.

Large sides are folded: neighbouring ranks share a row or a column, and a cell then names all heads of its routes and
how many routes it stands for.
"""

from collections import defaultdict
from collections.abc import Container, Iterator
from dataclasses import dataclass, field

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from disagg_cli.kv.heads import HeadRange
from disagg_cli.kv.plan import Route, SlicePlan

HEAD_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "bright_red", "bright_cyan", "bright_magenta")
_ROWS = 16
_CELL = 9


@dataclass(frozen=True, slots=True)
class Cell:
    """What a folded cell stands for: the heads of its routes, and how many there are."""

    heads: HeadRange
    routes: int
    wrong: bool


@dataclass(frozen=True, slots=True)
class PlanMatrix:
    """Shows a plan as wide as the console allows; `wrong` are decode ranks that the release in use garbles."""

    plan: SlicePlan
    wrong: Container[int] = field(default=())

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the table."""
        del console
        p, d = self.plan.prefill.attention_tp, self.plan.decode.attention_tp
        rows, columns = fold(p, _ROWS), fold(d, max(1, (options.max_width - 14) // _CELL))
        cells = fold_cells(self.plan, rows, columns, self.wrong)
        table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
        table.add_column(Text("prefill \\ decode", style="dim"), justify="right")
        for column in columns:
            style = "bold red" if any(rank in self.wrong for rank in column) else "bold"
            table.add_column(Text(_ranks(column), style=style), justify="center", no_wrap=True)
        for i, row in enumerate(rows):
            shown = (_show(cells.get((i, j))) for j in range(len(columns)))
            table.add_row(Text(_ranks(row), style="bold"), *shown)
        yield table
        if max(len(rows[0]), len(columns[0])) > 1:
            yield Text("  folded: a cell stands for all its ranks' routes, x their number", style="dim")
        if self.plan.dummies:
            yield Text(f"  {len(self.plan.dummies)} further contacts send nothing (MLA)", style="dim")


def fold(ranks: int, most: int) -> list[range]:
    """Cut ranks into at most so many groups of one size, of a size that divides them where one is near."""
    least = -(-ranks // most)
    size = next((size for size in range(least, min(ranks, 2 * least) + 1) if ranks % size == 0), least)
    return [range(first, min(first + size, ranks)) for first in range(0, ranks, size)]


def fold_cells(
    plan: SlicePlan, rows: list[range], columns: list[range], wrong: Container[int] = ()
) -> dict[tuple[int, int], Cell]:
    """Gather a plan's routes into cells."""
    gathered: dict[tuple[int, int], list[Route]] = defaultdict(list)
    for route in plan.routes:
        gathered[route.prefill_rank // len(rows[0]), route.decode_rank // len(columns[0])].append(route)
    return {place: _cell(routes, wrong) for place, routes in gathered.items()}


def _cell(routes: list[Route], wrong: Container[int]) -> Cell:
    first = min(route.heads.first for route in routes)
    past = max(route.heads.past_end for route in routes)
    return Cell(HeadRange(first, past), len(routes), any(route.decode_rank in wrong for route in routes))


def _show(cell: Cell | None) -> Text:
    if cell is None:
        return Text("\N{MIDDLE DOT}", style="dim")
    colour = "bold white on red" if cell.wrong else HEAD_COLOURS[cell.heads.first % len(HEAD_COLOURS)]
    text = Text(str(cell.heads), style=colour)
    return text.append(f" x{cell.routes}", style="dim") if cell.routes > 1 else text


def _ranks(span: range) -> str:
    return str(HeadRange(span.start, span.stop))


def legend(plan: SlicePlan) -> Iterator[Text]:
    """Say what a head is where it is not one."""
    if plan.layout.latent:
        yield Text("  0 is the latent, which every rank has whole", style="dim")
