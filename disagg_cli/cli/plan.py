"""`disagg plan`: which KV heads go where, and what this SGLang's connector does with that."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from disagg_cli.cli.options import Json
from disagg_cli.errors import UsageError

if TYPE_CHECKING:
    from disagg_cli.kv.layout import KVLayout
    from disagg_cli.kv.parallelism import Parallelism

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
Model = Annotated[str | None, typer.Option(help="A known model, or a folder or file with its config.json.")]
KvHeads = Annotated[int | None, typer.Option("--kv-heads", help="Plan for this many KV heads instead of the model's.")]
Sglang = Annotated[str | None, typer.Option("--sglang", help="SGLang release to judge by; default: the installed one.")]


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
    sglang: Sglang = None,
    as_json: Json = False,
) -> None:
    """Show which KV heads go from which prefill rank to which decode rank, and whether this SGLang does it right.

    Exits 0 where the plan holds and 3 where it does not.

    Example: disagg plan --prefill-tp 4 --decode-tp 1 --sglang 0.5.12
    """
    from disagg_cli.connector.releases import choose_release, installed_release
    from disagg_cli.console.plan_view import plan_view
    from disagg_cli.console.sink import show
    from disagg_cli.findings.report import report_plan

    report = report_plan(
        _layout(model, kv_heads),
        _side("prefill", prefill_tp, prefill_dp, prefill_pp, dp_attention=prefill_dp_attention),
        [_side("decode", tp, decode_dp, decode_pp, dp_attention=decode_dp_attention) for tp in decode_tp],
        choose_release(sglang, installed=installed_release()),
    )
    show(plan_view(report, assumed_model=model is None), report.document(), as_json=as_json)
    if not report.ok:
        raise typer.Exit(3)


def _side(where: str, tp: int, dp: int, pp: int, *, dp_attention: bool) -> "Parallelism":
    """The sizes of one side; a complaint about them names the side."""
    from disagg_cli.kv.parallelism import Parallelism

    try:
        return Parallelism(tp=tp, dp=dp, pp=pp, dp_attention=dp_attention)
    except UsageError as error:
        error.where = where
        raise


def _layout(model: str | None, kv_heads: int | None) -> "KVLayout":
    """The layout to plan for: the model's, or one like it with another number of KV heads."""
    from disagg_cli.kv.models import DEFAULT_MODEL, layout_for

    layout = layout_for(model or DEFAULT_MODEL)
    if kv_heads is None:
        return layout
    name = f"{layout.name} with {kv_heads} KV heads"
    return replace(layout, name=name, total_kv_heads=kv_heads, attention_heads=None)
