"""The plan report as `disagg.plan/1`."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from disagg_cli.connector.releases import Choice
from disagg_cli.connector.verdict import Verdict
from disagg_cli.kv import heads
from disagg_cli.kv.coverage import Coverage
from disagg_cli.kv.heads import HeadRange
from disagg_cli.kv.layout import KVLayout
from disagg_cli.kv.parallelism import Parallelism
from disagg_cli.kv.plan import Route, SlicePlan

if TYPE_CHECKING:
    from disagg_cli.findings.report import PlanReport, PoolReport

SCHEMA = "disagg.plan/1"


def plan_document(report: "PlanReport") -> dict[str, Any]:
    """Put a report into JSON's types.

    With one decode pool `decode`, `routes`, `coverage`, `completion`, `connector` and what else belongs to it stand at
    the top; with several they stand once per pool, in `pools`.
    """
    pools = [_pool(pool, report) for pool in report.pools]
    return {
        "schema": SCHEMA,
        "model": model_document(report.layout),
        "prefill": _side(report.layout, report.prefill),
        **(pools[0] if len(pools) == 1 else {"pools": pools}),
        "findings": [found.document() for found in report.findings],
        "ok": report.ok,
    }


def model_document(layout: KVLayout) -> dict[str, Any]:
    """A layout: the contract's keys, then the pools beside the main one (null where there is none)."""
    return {
        "name": layout.name,
        "layout": layout.kind.value,
        "total_kv_heads": layout.total_kv_heads,
        "num_layers": layout.num_layers,
        "head_dim": layout.head_dim,
        "kv_dtype": layout.kv_dtype,
        "bytes_per_token": layout.bytes_per_token,
        "attention_heads": layout.attention_heads,
        "kv_layers": list(layout.main_layer_ids),
        "v_head_dim": None if layout.latent else layout.v_head_dim or layout.head_dim,
        "latent": layout.latent,
        "window": asdict(layout.window) if layout.window else None,
        "index": asdict(layout.index) if layout.index else None,
        "state": asdict(layout.state) if layout.state else None,
        "compressed": [asdict(pool) for pool in layout.compressed],
        "ring": asdict(layout.ring) if layout.ring else None,
        "state_bytes_per_request": layout.state_bytes,
        "draft_layers_not_counted": layout.draft_layers,
        "source": layout.source,
    }


def verdict_document(verdict: Verdict) -> dict[str, Any]:
    """One release's verdict on one case."""
    return {"outcome": verdict.outcome.value, "ok": verdict.ok, "reason": verdict.reason}


def _side(layout: KVLayout, side: Parallelism) -> dict[str, Any]:
    tp, total = side.attention_tp, layout.total_kv_heads
    fits = heads.loadable(total, tp)
    return {
        "tp": side.tp,
        "dp": side.dp,
        "pp": side.pp,
        "attention_tp": tp,
        "heads_per_rank": heads.heads_per_rank(total, tp) if fits else None,
        "replication": heads.replication(total, tp) if fits else None,
    }


def _pool(pool: "PoolReport", report: "PlanReport") -> dict[str, Any]:
    plan = pool.plan
    return {
        "decode": _side(report.layout, pool.decode),
        "routes": [_route(route) for route in plan.routes] if plan else [],
        "coverage": _coverage(pool.coverage),
        "completion": {"keys_expected": plan.keys_expected if plan else None},
        "connector": _connector(pool, report.choice, applied=report.overlay),
        "dummy_contacts": [asdict(contact) for contact in plan.dummies] if plan else [],
        "stages": _stages(plan) if plan else [],
        "state_routes": _state_routes(plan) if plan else [],
        "traffic": pool.traffic.document() if pool.traffic else None,
        "descriptors": pool.descriptors.document() if pool.descriptors else None,
        **({"releases": _releases(pool)} if pool.releases else {}),
    }


def _releases(pool: "PoolReport") -> dict[str, Any]:
    repaired = pool.repaired_releases or {}
    return {
        name: {**verdict_document(verdict), "overlay": _overlay(repaired.get(name))}
        for name, verdict in (pool.releases or {}).items()
    }


def _overlay(repaired: Verdict | None) -> dict[str, Any]:
    """What the overlay makes of it."""
    outcome = repaired.outcome.value if repaired else None
    return {"available": repaired is not None, "applied": False, "outcome": outcome}


def _route(route: Route) -> dict[str, Any]:
    return {
        "prefill_rank": route.prefill_rank,
        "decode_rank": route.decode_rank,
        "heads": _range(route.heads),
        "src_head_offset": route.src_head_offset,
        "dst_head_offset": route.dst_head_offset,
        "num_heads": route.num_heads,
        "bytes_per_token": route.bytes_per_token,
    }


def _stages(plan: SlicePlan) -> list[dict[str, Any]]:
    return [asdict(stage) | {"layers": _range(stage.layers)} for stage in plan.stages]


def _state_routes(plan: SlicePlan) -> list[dict[str, Any]]:
    return [asdict(route) | {"channels": _range(route.channels)} for route in plan.state_routes]


def _range(span: HeadRange) -> list[int]:
    return [span.first, span.past_end]


def _coverage(coverage: Coverage | None) -> dict[str, Any]:
    if coverage is None:
        return {"ok": False, "gaps": [], "overlaps": [], "wrong": [], "replica_writes": 0, "state": []}
    return {
        "ok": coverage.ok,
        "gaps": [asdict(gap) | {"heads": _range(gap.heads)} for gap in coverage.gaps],
        "overlaps": [
            asdict(overlap) | {"heads": _range(overlap.heads), "prefill_ranks": list(overlap.prefill_ranks)}
            for overlap in coverage.overlaps
        ],
        "wrong": [
            asdict(wrong)
            | {"expected": _range(wrong.expected), "received": _range(wrong.received) if wrong.received else None}
            for wrong in coverage.wrong
        ],
        "replica_writes": coverage.replica_writes,
        "state": [
            asdict(fault)
            | {"channels": _range(fault.channels), "received": _range(fault.received) if fault.received else None}
            for fault in coverage.state
        ],
    }


def _connector(pool: "PoolReport", choice: Choice, *, applied: bool) -> dict[str, Any]:
    """The release's verdict, and the overlay's."""
    verdict = pool.verdict
    return {
        "sglang": choice.sglang,
        "judged_as": choice.release.name,
        "origin": choice.origin.value,
        **verdict_document(verdict),
        "wrong_decode_ranks": list(pool.wrong_ranks),
        "overlay": _overlay(pool.repaired) | {"applied": applied},
        "minimum_release": verdict.minimum_release,
    }
