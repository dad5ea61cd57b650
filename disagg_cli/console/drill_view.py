"""What `disagg drill` shows: a line as each drill ends, and a table of all of them."""

from collections.abc import Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from disagg_cli.runtime.drill import Drill


def drill_line(drill: Drill) -> RenderableType:
    """One drill that has just ended."""
    cause = f"\n    cause {drill.cause}" if drill.cause else ""
    return Text.assemble(_verdict(drill), f"  {drill.fault}: {drill.found} ({drill.seconds:.1f} s){cause}")


def drill_table(drills: Sequence[Drill]) -> RenderableType:
    """All drills."""
    table = Table(box=None, pad_edge=False)
    for heading in ("", "fault", "what it does", "found", "after", "pairs"):
        table.add_column(heading)
    for drill in drills:
        seconds, pairs = f"{drill.seconds:.1f} s", "\n".join(drill.pairs)
        table.add_row(_verdict(drill), drill.fault, drill.what, drill.shown, seconds, pairs)
    return table


def _verdict(drill: Drill) -> Text:
    return Text("ok" if drill.ok else "MISSED", style="green" if drill.ok else "bold red")
