"""What a request moves, for a person."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from disagg_cli.connector.descriptors import Descriptors
from disagg_cli.console.units import counted, human_bytes, human_seconds
from disagg_cli.findings.report import PlanReport, PoolReport
from disagg_cli.kv.request import Request
from disagg_cli.kv.traffic import Traffic, links

_WORTH_SAYING = 1 << 20
"""Prepared lists smaller than this weigh nothing."""


def traffic_view(report: PlanReport) -> Iterator[RenderableType]:
    """The traffic of each pool: bytes, descriptors, least times."""
    for pool in report.pools:
        if pool.traffic and pool.traffic.wire_bytes:
            yield _traffic(pool, report.request, named=len(report.pools) > 1)
            yield Text()


def _traffic(pool: PoolReport, request: Request, *, named: bool) -> RenderableType:
    traffic = pool.traffic
    assert traffic is not None
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row("  traffic   ", _bytes(traffic) + (f" ({pool.where})" if named else ""))
    if pool.descriptors:
        grid.add_row("", _descriptors(pool.descriptors))
    grid.add_row("  least time", _times(traffic, request))
    return grid


def _bytes(traffic: Traffic) -> str:
    again = traffic.wire_bytes - traffic.request_bytes
    repeated = f", {human_bytes(traffic.wire_bytes)} on the wire with replicas" if again > 0 else ""
    return (
        f"a request of {counted(traffic.tokens, 'token')}: {human_bytes(traffic.request_bytes)}{repeated}; "
        f"busiest prefill rank sends {human_bytes(traffic.sent)} to {counted(traffic.fan_out, 'decode rank')}, "
        f"busiest decode rank gets {human_bytes(traffic.received)} from {counted(traffic.fan_in, 'sender')}"
    )


def _descriptors(made: Descriptors) -> str:
    text = f"{counted(made.per_request, 'descriptor')} of {human_bytes(made.bytes_each)} to each decode rank"
    if made.source_list_bytes is None or made.target_list_bytes is None or made.target_list_bytes < _WORTH_SAYING:
        return text
    return (
        f"{text}; prepared lists for a pool of {made.pool_tokens:,} tokens: "
        f"{human_bytes(made.source_list_bytes)} per prefill rank and {human_bytes(made.target_list_bytes)} for each "
        f"decode rank that it feeds"
    )


def _times(traffic: Traffic, request: Request) -> Text:
    """Every link with its least time, red where it misses the deadline."""
    text = Text()
    for link in links().values():
        seconds = traffic.seconds(link)
        late = request.ttft_s is not None and seconds > request.ttft_s
        text.append(f"{link.label} {human_seconds(seconds)}", style="red" if late else "")
        text.append(" \N{MIDDLE DOT} ", style="dim")
    text.right_crop(3)
    if request.ttft_s is not None:
        text.append(f" (red: over {human_seconds(request.ttft_s)})", style="dim")
    return text
