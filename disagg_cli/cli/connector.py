"""`disagg connector`: what SGLang's NIXL connector does, release by release, and what the installed one does."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from disagg_cli.cli.options import Json
from disagg_cli.cli.plan import (
    DecodeDp,
    DecodeDpAttention,
    DecodePp,
    KvHeads,
    Model,
    PrefillDp,
    PrefillDpAttention,
    PrefillPp,
    side,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from disagg_cli.connector.conformance.verify import Cell, Check
    from disagg_cli.connector.releases import Choice

app = typer.Typer(help="What SGLang's NIXL connector does with a plan.", no_args_is_help=True)

OnePrefillTp = Annotated[int | None, typer.Option("--prefill-tp", help="Verify one plan only: prefill TP.")]
OneDecodeTp = Annotated[list[int] | None, typer.Option("--decode-tp", help="Its decode TP; repeat it for each pool.")]
WithOverlay = Annotated[bool, typer.Option("--overlay", help="Verify it with disagg's overlay loaded.")]


@app.command()
def releases(as_json: Json = False) -> None:
    """Show what every known SGLang release does with every class of plans."""
    from dataclasses import asdict

    from disagg_cli.connector.classes import CLASSES
    from disagg_cli.connector.releases import known_releases
    from disagg_cli.connector.verdict import judge_case
    from disagg_cli.connector.verified import verified_releases
    from disagg_cli.console.releases_view import releases_view
    from disagg_cli.console.sink import show
    from disagg_cli.findings.document import verdict_document

    verified = verified_releases()
    rows = [(known, {one: judge_case(known, one.case) for one in CLASSES}) for known in known_releases()]
    document: dict[str, Any] = {
        "schema": "disagg.connector-releases/1",
        "classes": {one.letter: {"meaning": one.meaning, "example": one.example} for one in CLASSES},
        "releases": {
            known.name: {
                "date": known.date,
                "source": known.source,
                "connector": asdict(known.connector),
                "outcomes": {one.letter: verdict_document(verdict) for one, verdict in verdicts.items()},
                "executed": asdict(verified[known.name]) if known.name in verified else None,
            }
            for known, verdicts in rows
        },
    }
    show(releases_view(rows, verified), document, as_json=as_json)


@app.command()
def verify(
    prefill_tp: OnePrefillTp = None,
    decode_tp: OneDecodeTp = None,
    prefill_dp: PrefillDp = 1,
    decode_dp: DecodeDp = 1,
    prefill_dp_attention: PrefillDpAttention = False,
    decode_dp_attention: DecodeDpAttention = False,
    prefill_pp: PrefillPp = 1,
    decode_pp: DecodePp = 1,
    model: Model = None,
    kv_heads: KvHeads = None,
    overlay: WithOverlay = False,
    as_json: Json = False,
) -> None:
    """Run the installed SGLang's own connector, both ends of it, on recorded memory; compare with the plan.

    What is compared: the bytes that arrive, and whether each decode rank waits for all its senders, and not for ever.
    No GPU, server or network is used. Without sizes a grid of them is run, and a cell agrees where the installed
    connector does what disagg says of its release, faults included. With sizes that one plan must come out right.
    Exits 3 where it does not.

    Example: disagg connector verify --prefill-tp 4 --decode-tp 1
    """
    from disagg_cli.connector.conformance.verify import grid, one_check
    from disagg_cli.errors import UsageError

    if (prefill_tp is None) is not (not decode_tp):
        raise UsageError("one plan needs --prefill-tp and --decode-tp", fix="give both, or neither for the grid")
    if prefill_tp is None or not decode_tp:
        if model or kv_heads or (prefill_dp, decode_dp, prefill_pp, decode_pp) != (1, 1, 1, 1):
            raise UsageError("the grid has sizes and models of its own", fix="give --prefill-tp and --decode-tp, too")
        return _verify(list(grid()), all_right=False, overlay=overlay, as_json=as_json)
    from disagg_cli.cli.plan import planned_layout

    layout = planned_layout(model, kv_heads, None)
    prefill = side("prefill", prefill_tp, prefill_dp, prefill_pp, dp_attention=prefill_dp_attention)
    pools = [side("decode", tp, decode_dp, decode_pp, dp_attention=decode_dp_attention) for tp in decode_tp]
    return _verify([one_check(layout, prefill, pools)], all_right=True, overlay=overlay, as_json=as_json)


def _verify(checks: "Sequence[Check]", *, all_right: bool, overlay: bool, as_json: bool) -> None:
    """Run checks, show them, and exit 3 where one does not hold."""
    from disagg_cli.connector.conformance.installed import import_connector
    from disagg_cli.connector.conformance.verify import judged, run_checks
    from disagg_cli.connector.releases import choose_release, installed_release
    from disagg_cli.console.sink import console, show
    from disagg_cli.console.verify_view import verify_view
    from disagg_cli.errors import PlanRefused, UsageError

    if installed_release() is None:
        raise UsageError("SGLang is not installed here", fix="pip install 'disagg-cli[engine]'")
    choice = choose_release(installed=installed_release())
    runnable = judged(checks, choice, overlay=overlay)
    if not runnable:
        raise PlanRefused("these sizes cannot be run: see `disagg plan` with the same options")
    with console(as_json=True).status(f"importing SGLang {choice.sglang}"):
        connector = import_connector(overlay=overlay)
    with console(as_json=True).status(f"running {len(runnable)} plans"):
        cells = run_checks(connector, runnable, choice, overlay=overlay)
    ok = all(cell.agrees and (cell.right or not all_right) for cell in cells)
    show(verify_view(cells, choice), _document(cells, choice, overlay=overlay, ok=ok), as_json=as_json)
    if not ok:
        raise typer.Exit(3)


def _document(cells: "Sequence[Cell]", choice: "Choice", *, overlay: bool, ok: bool) -> dict[str, Any]:
    return {
        "schema": "disagg.connector-verify/1",
        "sglang": choice.sglang,
        "judged_as": choice.release.name,
        "overlay": overlay,
        "cells": [cell.document() for cell in cells],
        "agree": sum(cell.agrees for cell in cells),
        "right": sum(cell.right for cell in cells),
        "total": len(cells),
        "ok": ok,
    }
