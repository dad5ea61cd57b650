"""The plan report for a person: who sends which heads to whom, is it complete, what will this SGLang do with it."""

from collections.abc import Iterable, Iterator, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from disagg_cli.connector.verdict import Verdict
from disagg_cli.console.layout_view import layout_facts
from disagg_cli.console.plan_matrix import HEAD_COLOURS, PlanMatrix, legend
from disagg_cli.console.units import counted, human_bytes
from disagg_cli.findings.finding import Finding, Severity
from disagg_cli.findings.report import PlanReport, PoolReport
from disagg_cli.kv import heads
from disagg_cli.kv.coverage import Coverage
from disagg_cli.kv.layout import KVLayout
from disagg_cli.kv.parallelism import Parallelism
from disagg_cli.kv.plan import Route, SlicePlan

__all__ = ["findings_view", "human_bytes", "plan_view"]

_ROWS = 16
"""Plans of more routes show only the matrix; `--json` has every route."""
_SEVERITY_STYLE = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.NOTE: "bold blue"}


def plan_view(report: PlanReport, *, assumed_model: bool = False) -> RenderableType:
    """Show a whole plan report; say so where nobody named the model."""
    from disagg_cli.console.traffic_view import traffic_view

    pools = [part for pool in report.pools for part in _pool(report, pool)]
    return Group(
        _model(report.layout, assumed=assumed_model),
        *pools,
        *traffic_view(report),
        *findings_view(report.findings),
        _conclusion(report),
    )


def findings_view(findings: Sequence[Finding]) -> Iterator[RenderableType]:
    """Show findings, each with its place and its fix."""
    for found in findings:
        style = _SEVERITY_STYLE[found.severity]
        yield _line(f"{found.severity.value} {found.code}", style, f"{found.where}: {found.message}")
        yield _line("fix", "bold", found.fix, indent=4)
    if findings:
        yield Text()


def _model(layout: KVLayout, *, assumed: bool) -> Text:
    default = " (by default; --model changes it)" if assumed else ""
    draft = (
        f"\nnot counted: the KV of {counted(layout.draft_layers, 'built-in draft layer')}"
        if layout.draft_layers
        else ""
    )
    return Text.assemble((layout.name, "bold"), default, "\n", (layout_facts(layout) + draft, "dim"))


def _pool(report: PlanReport, pool: PoolReport) -> Iterator[RenderableType]:
    total = report.layout.total_kv_heads
    name = pool.where if len(report.pools) > 1 else "decode"
    yield Text.assemble(_side("prefill", report.prefill, total), "  ->  ", _side(name, pool.decode, total))
    yield Text()
    if pool.plan:
        yield from _routes(pool.plan, pool.wrong_ranks)
        yield from _stages(pool.plan)
        waits = f"each decode rank waits for {counted(pool.plan.keys_expected, 'sender')}"
        yield _line("completion", "bold", waits, indent=2)
    if pool.coverage:
        yield _line("coverage  ", "bold", _coverage(pool.coverage), indent=2)
    yield _line("connector ", "bold", _verdict(report, pool.verdict), indent=2)
    if pool.repaired and pool.repaired.ok and not pool.verdict.ok:
        loaded = (
            "loaded: this release gets it right with it" if report.overlay else "would put it right (disagg launch)"
        )
        yield _line("overlay   ", "bold", loaded, indent=2)
    yield Text()


def _side(name: str, side: Parallelism, total: int) -> Text:
    tp = side.attention_tp
    sizes = f"TP{side.tp}" + (f" DP{side.dp}" if side.dp > 1 else "") + (f" PP{side.pp}" if side.pp > 1 else "")
    if tp != side.tp:
        sizes += f", attention TP{tp} in each of {side.dp} DP groups"
    return Text.assemble((name, "bold"), f" {sizes} ", (f"({_held(total, tp)})", "dim"))


def _held(total: int, tp: int) -> str:
    if not heads.loadable(total, tp):
        return f"{total} KV heads do not load"
    copies = heads.replication(total, tp)
    shared = f", each head on {copies} ranks" if copies > 1 else ""
    return f"{counted(heads.heads_per_rank(total, tp), 'head')} per rank{shared}"


def _routes(plan: SlicePlan, wrong: Sequence[int]) -> Iterator[RenderableType]:
    if not plan.routes:
        return
    yield PlanMatrix(plan, frozenset(wrong))
    yield from legend(plan)
    yield Text()
    if len(plan.routes) > _ROWS:
        return
    table = Table(box=SIMPLE_HEAD, show_edge=False)
    table.add_column("decode", justify="right")
    table.add_column("needs heads")
    table.add_column("from prefill", justify="right")
    table.add_column("heads")
    table.add_column("read at", justify="right")
    table.add_column("write at", justify="right")
    table.add_column("per token", justify="right")
    previous = None
    for route in plan.routes:
        table.add_row(*_row(plan, route, first=route.decode_rank != previous))
        previous = route.decode_rank
    yield table
    yield Text()


def _row(plan: SlicePlan, route: Route, *, first: bool) -> tuple[RenderableType, ...]:
    colour = HEAD_COLOURS[route.heads.first % len(HEAD_COLOURS)]
    return (
        str(route.decode_rank) if first else "",
        str(plan.heads_of_decode(route.decode_rank)) if first else "",
        str(route.prefill_rank),
        Text(str(route.heads), style=colour),
        str(route.src_head_offset),
        str(route.dst_head_offset),
        human_bytes(route.bytes_per_token),
    )


def _stages(plan: SlicePlan) -> Iterator[RenderableType]:
    """Which layers each prefill stage sends, where there are several."""
    if len(plan.stages) < 2:
        return
    parts = _some([f"{stage.prefill_stage}: layers {stage.layers}" for stage in plan.stages])
    to = "decode's only one" if plan.decode.pp == 1 else "the decode stage of its number"
    yield _line("stages    ", "bold", f"each to {to}; {', '.join(parts)}", indent=2)


def _coverage(coverage: Coverage) -> Text:
    if coverage.ok:
        text = Text("complete: every head of every decode rank is written, from that head", style="green")
        if coverage.replica_writes:
            again = counted(coverage.replica_writes, "head")
            text.append(f" ({again} written again by replicas: the same bytes, more traffic)", style="dim")
        return text
    faults = [
        *(f"decode rank {gap.decode_rank}: nobody writes head(s) {gap.heads}" for gap in coverage.gaps),
        *(f"decode rank {o.decode_rank}: different heads meet at {o.heads}" for o in coverage.overlaps),
        *(f"decode rank {w.decode_rank}: {w.received} where {w.expected} belong" for w in coverage.wrong),
        *(f"decode rank {s.decode_rank}: {s.tensor} channels {s.channels}" for s in coverage.state),
    ]
    return Text("; ".join(_some(faults)), style="red")


def _verdict(report: PlanReport, verdict: Verdict) -> Text:
    choice = report.choice
    judged = f", judged as {choice.release.name}" if choice.approximate else ""
    style = "green" if verdict.ok else "bold red"
    text = Text(verdict.reason if verdict.ok else verdict.outcome.value, style=style)
    since = f"right from {verdict.minimum_release} on" if verdict.minimum_release else "no release helps"
    return text.append(f" (SGLang {choice.sglang}, {choice.origin.value}{judged}; {since})", style="dim")


def _conclusion(report: PlanReport) -> Text:
    if report.ok:
        return Text("The plan holds.", style="bold green")
    errors = sum(found.severity is Severity.ERROR for found in report.findings)
    return Text(f"The plan does not hold: {counted(errors, 'error')}.", style="bold red")


def _line(label: str, style: str, text: str | Text, *, indent: int = 0) -> RenderableType:
    """A label, and text that wraps beside it."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(Text(" " * indent + label, style=style), text)
    return grid


def _some(items: Iterable[str], most: int = 6) -> list[str]:
    listed = list(items)
    more = [f"and {len(listed) - most} more"] if len(listed) > most else []
    return listed[:most] + more
