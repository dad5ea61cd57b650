"""What `disagg probe` shows: each pair, what it took, and how its log-probabilities compare."""

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from disagg_cli.runtime.reprobe import Reprobe


def probe_table(result: Reprobe) -> RenderableType:
    """One row for each pair."""
    table = Table(box=None, pad_edge=False)
    for heading in ("", "pair", "first token", "all", "KV"):
        table.add_column(heading)
    compared = {(one.prefill, one.decode): one for one in result.parity}
    for pair in result.pairs:
        parity = compared.get((pair.prefill, pair.decode))
        ok = pair.ok and parity is not None and parity.ok
        said = parity.sentence() if parity else pair.error or ""
        first = f"{pair.first_token_s:.2f} s" if pair.first_token_s else "-"
        mark = Text("ok" if ok else "WRONG", style="green" if ok else "bold red")
        table.add_row(mark, f"{pair.prefill} -> {pair.decode}", first, f"{pair.total_s:.2f} s", Text(said))
    return table
