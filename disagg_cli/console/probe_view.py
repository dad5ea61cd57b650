"""What `disagg probe` shows: each pair, what it took, and how its log-probabilities compare."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from disagg_cli.runtime.reprobe import Reprobe, Round


def round_line(number: int, one: Round) -> RenderableType:
    """One of several rounds that has just ended."""
    return Text.assemble(f"round {number}: ", _mark(ok=one.ok), f" ({one.seconds:.1f} s)")


def probe_table(result: Reprobe) -> RenderableType:
    """One row for each pair of the round to look at, and how many rounds there were."""
    table = Table(box=None, pad_edge=False)
    for heading in ("", "pair", "first token", "all", "KV"):
        table.add_column(heading)
    compared = {(one.prefill, one.decode): one for one in result.shown.parity}
    for pair in result.shown.pairs:
        parity = compared.get((pair.prefill, pair.decode))
        ok = pair.ok and (parity is None or parity.ok)
        words = parity.sentence() if parity else pair.error or "moved, not compared"
        first = f"{pair.first_token_s:.2f} s" if pair.first_token_s else "-"
        table.add_row(_mark(ok=ok), f"{pair.prefill} -> {pair.decode}", first, f"{pair.total_s:.2f} s", Text(words))
    said = [Text(f"likely cause: {one.cause}\n  fix: {one.fix}") for one in result.shown.causes]
    if len(result.rounds) > 1:
        wrong = sum(not one.ok for one in result.rounds)
        slowest = max(one.seconds for one in result.rounds)
        said.append(Text(f"{len(result.rounds)} rounds, {wrong} of them failed; the slowest took {slowest:.1f} s"))
    return Group(table, *said)


def _mark(*, ok: bool) -> Text:
    return Text("ok" if ok else "WRONG", style="green" if ok else "bold red")
