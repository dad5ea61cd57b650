"""`disagg plan`: which KV heads go where, and what this SGLang's connector does with that."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from disagg_cli.cli.options import Json
from disagg_cli.errors import UsageError

if TYPE_CHECKING:
    from disagg_cli.findings.report import PlanReport
    from disagg_cli.kv.layout import KVLayout
    from disagg_cli.kv.parallelism import Parallelism

_TRAFFIC = "Traffic"
_OUTPUT = "Output"

PrefillTp = Annotated[int, typer.Option("--prefill-tp", help="TP size of a prefill worker.")]
PrefillDp = Annotated[int, typer.Option("--prefill-dp", help="DP size of a prefill worker.")]
PrefillPp = Annotated[int, typer.Option("--prefill-pp", help="Pipeline stages of a prefill worker.")]
PrefillDpAttention = Annotated[bool, typer.Option("--prefill-dp-attention", help="Prefill uses DP attention.")]
DecodeTp = Annotated[
    list[int], typer.Option("--decode-tp", help="TP size of a decode worker; repeat it for each pool.")
]
DecodeDp = Annotated[int, typer.Option("--decode-dp", help="DP size of a decode worker.")]
DecodePp = Annotated[int, typer.Option("--decode-pp", help="Pipeline stages of a decode worker.")]
DecodeDpAttention = Annotated[bool, typer.Option("--decode-dp-attention", help="Decode uses DP attention.")]
Model = Annotated[
    str | None,
    typer.Option(help="A known model (`disagg models`), a hub id, or a folder or file with its config.json."),
]
KvHeads = Annotated[int | None, typer.Option("--kv-heads", help="Plan for this many KV heads instead of the model's.")]
KvDtype = Annotated[str | None, typer.Option("--kv-dtype", help="KV dtype, as in --kv-cache-dtype.")]
Sglang = Annotated[str | None, typer.Option("--sglang", help="SGLang release to judge by; default: the installed one.")]
Releases = Annotated[bool, typer.Option("--releases", help="Judge by every known SGLang release.")]
Tokens = Annotated[int, typer.Option(help="Tokens of the request whose traffic is shown.", rich_help_panel=_TRAFFIC)]
PageSize = Annotated[int, typer.Option("--page-size", help="Page size of both sides.", rich_help_panel=_TRAFFIC)]
PoolTokens = Annotated[
    int, typer.Option("--pool-tokens", help="Tokens that a rank's pool holds.", rich_help_panel=_TRAFFIC)
]
Link = Annotated[str | None, typer.Option(help="Link that has to meet --ttft-ms.", rich_help_panel=_TRAFFIC)]
TtftMs = Annotated[
    float | None, typer.Option("--ttft-ms", help="Time to the first token to be met.", rich_help_panel=_TRAFFIC)
]
Svg = Annotated[Path | None, typer.Option(help="Draw the plan into this SVG file.", rich_help_panel=_OUTPUT)]
Png = Annotated[Path | None, typer.Option(help="Draw the plan into this PNG file.", rich_help_panel=_OUTPUT)]


def plan(
    prefill_tp: PrefillTp,
    decode_tp: DecodeTp,
    prefill_dp: PrefillDp = 1,
    decode_dp: DecodeDp = 1,
    prefill_dp_attention: PrefillDpAttention = False,
    decode_dp_attention: DecodeDpAttention = False,
    prefill_pp: PrefillPp = 1,
    decode_pp: DecodePp = 1,
    model: Model = None,
    kv_heads: KvHeads = None,
    kv_dtype: KvDtype = None,
    sglang: Sglang = None,
    releases: Releases = False,
    tokens: Tokens = 8192,
    page_size: PageSize = 1,
    pool_tokens: PoolTokens = 500_000,
    link: Link = None,
    ttft_ms: TtftMs = None,
    svg: Svg = None,
    png: Png = None,
    as_json: Json = False,
) -> None:
    """Show which KV heads go from which prefill rank to which decode rank, and whether this SGLang does it right.

    Exits 0 where the plan holds and 3 where it does not.

    Example: disagg plan --prefill-tp 4 --decode-tp 1 --sglang 0.5.12
    """
    from disagg_cli.connector.releases import choose_release, installed_release
    from disagg_cli.findings.report import report_plan
    from disagg_cli.kv.request import Request
    from disagg_cli.kv.traffic import find_link

    if link:
        find_link(link)
    report = report_plan(
        planned_layout(model, kv_heads, kv_dtype),
        side("prefill", prefill_tp, prefill_dp, prefill_pp, dp_attention=prefill_dp_attention),
        [side("decode", tp, decode_dp, decode_pp, dp_attention=decode_dp_attention) for tp in decode_tp],
        choose_release(sglang, installed=installed_release()),
        request=Request(
            tokens=tokens,
            page_size=page_size,
            pool_tokens=pool_tokens,
            link=link,
            ttft_s=None if ttft_ms is None else ttft_ms / 1000,
        ),
        all_releases=releases,
    )
    for path in filter(None, (svg, png)):
        from disagg_cli.console.plan_picture import draw

        draw(report, path, kind="svg" if path == svg else "png")
    _show(report, assumed_model=model is None, releases=releases, as_json=as_json)
    if not report.ok:
        raise typer.Exit(3)


def _show(report: "PlanReport", *, assumed_model: bool, releases: bool, as_json: bool) -> None:
    """The document, or the plan, or its row of releases."""
    from disagg_cli.console.sink import show, write_json

    if as_json:
        write_json(report.document())
    elif releases:
        from disagg_cli.console.releases_view import plan_releases_view

        show(plan_releases_view(report), {}, as_json=False)
    else:
        from disagg_cli.console.plan_view import plan_view

        show(plan_view(report, assumed_model=assumed_model), {}, as_json=False)


def side(where: str, tp: int, dp: int, pp: int, *, dp_attention: bool) -> "Parallelism":
    """The sizes of one side; a complaint about them names the side."""
    from disagg_cli.kv.parallelism import Parallelism

    try:
        return Parallelism(tp=tp, dp=dp, pp=pp, dp_attention=dp_attention)
    except UsageError as error:
        error.where = where
        raise


def planned_layout(model: str | None, kv_heads: int | None, kv_dtype: str | None) -> "KVLayout":
    """The layout to plan for: the model's, or one like it with another number of KV heads or another dtype."""
    from disagg_cli.kv.models import DEFAULT_MODEL, layout_for

    layout = layout_for(model or DEFAULT_MODEL)
    if kv_dtype is not None:
        layout = replace(layout, kv_dtype=kv_dtype)
    if kv_heads is None:
        return layout
    if layout.latent:
        raise UsageError(f"{layout.name} has a latent cache, and no KV heads to set", fix="leave --kv-heads out")
    name = f"{layout.name} with {kv_heads} KV heads"
    window = replace(layout.window, kv_heads=kv_heads) if layout.window else None
    return replace(layout, name=name, total_kv_heads=kv_heads, attention_heads=None, window=window)
