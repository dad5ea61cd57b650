"""The plan report: what `disagg plan` shows and what `disagg launch` refuses by. One object for both."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from disagg_cli.connector.releases import Choice
from disagg_cli.connector.verdict import Verdict, judge, judge_pools
from disagg_cli.findings.finding import Finding, Severity
from disagg_cli.findings.plan_rules import Judged, judge_plan, mixed_pools
from disagg_cli.kv import heads
from disagg_cli.kv.coverage import Coverage, cover
from disagg_cli.kv.heads import HeadRange
from disagg_cli.kv.layout import KVLayout
from disagg_cli.kv.parallelism import Parallelism
from disagg_cli.kv.plan import Route, SlicePlan, plan_slices

SCHEMA = "disagg.plan/1"


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolReport:
    """One decode pool behind the prefill pool. `plan` and `coverage` are None where the model does not load."""

    where: str
    decode: Parallelism
    plan: SlicePlan | None
    coverage: Coverage | None
    verdict: Verdict
    findings: tuple[Finding, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanReport:
    """A prefill pool, its decode pools, and everything said about them."""

    layout: KVLayout
    prefill: Parallelism
    pools: tuple[PoolReport, ...]
    choice: Choice
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing forbids a launch."""
        return not any(found.severity is Severity.ERROR for found in self.findings)

    def document(self) -> dict[str, Any]:
        """The report as `disagg.plan/1`.

        With one decode pool `decode`, `routes`, `coverage`, `completion` and `connector` stand at the top; with several
        they stand once per pool, in `pools`.
        """
        pools = [_pool(pool, self) for pool in self.pools]
        return {
            "schema": SCHEMA,
            "model": _model(self.layout),
            "prefill": _side(self.layout, self.prefill),
            **(pools[0] if len(pools) == 1 else {"pools": pools}),
            "findings": [found.document() for found in self.findings],
            "ok": self.ok,
        }


def report_plan(
    layout: KVLayout, prefill: Parallelism, decode_pools: Sequence[Parallelism], choice: Choice
) -> PlanReport:
    """Plan and judge a prefill pool with its decode pools on the chosen SGLang release."""
    names = ["decode"] if len(decode_pools) == 1 else [f"decode[{i}]" for i in range(len(decode_pools))]
    pools = tuple(
        _report_pool(layout, prefill, pool, choice, where) for where, pool in zip(names, decode_pools, strict=True)
    )
    decode_tps = [pool.attention_tp for pool in decode_pools]
    mix = judge_pools(choice.release, prefill.attention_tp, decode_tps, layout.total_kv_heads, kind=layout.kind)
    findings = [found for pool in pools for found in pool.findings]
    findings += mixed_pools(mix, decode_pools)
    return PlanReport(
        layout=layout, prefill=prefill, pools=pools, choice=choice, findings=tuple(dict.fromkeys(findings))
    )


def _report_pool(layout: KVLayout, prefill: Parallelism, decode: Parallelism, choice: Choice, where: str) -> PoolReport:
    plan = plan_slices(layout, prefill, decode)
    verdict = judge(
        choice.release,
        prefill.attention_tp,
        decode.attention_tp,
        layout.total_kv_heads,
        pp=prefill.pp,
        decode_pp=decode.pp,
        kind=layout.kind,
    )
    judged = Judged(
        layout=layout, prefill=prefill, decode=decode, plan=plan, verdict=verdict, choice=choice, where=where
    )
    return PoolReport(
        where=where,
        decode=decode,
        plan=plan,
        coverage=cover(plan) if plan else None,
        verdict=verdict,
        findings=judge_plan(judged),
    )


def _model(layout: KVLayout) -> dict[str, Any]:
    return {
        "name": layout.name,
        "layout": layout.kind.value,
        "total_kv_heads": layout.total_kv_heads,
        "num_layers": layout.num_layers,
        "head_dim": layout.head_dim,
        "kv_dtype": layout.kv_dtype,
        "bytes_per_token": layout.bytes_per_token,
    }


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


def _pool(pool: PoolReport, report: PlanReport) -> dict[str, Any]:
    return {
        "decode": _side(report.layout, pool.decode),
        "routes": [_route(route) for route in pool.plan.routes] if pool.plan else [],
        "coverage": _coverage(pool.coverage),
        "completion": {"keys_expected": pool.plan.keys_expected if pool.plan else None},
        "connector": _connector(pool.verdict, report.choice),
    }


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


def _range(span: HeadRange) -> list[int]:
    return [span.first, span.past_end]


def _coverage(coverage: Coverage | None) -> dict[str, Any]:
    if coverage is None:
        return {"ok": False, "gaps": [], "overlaps": [], "wrong": [], "replica_writes": 0}
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
    }


def _connector(verdict: Verdict, choice: Choice) -> dict[str, Any]:
    """The release's verdict. No overlay exists in this version of disagg, so none is available."""
    return {
        "sglang": choice.sglang,
        "judged_as": choice.release.name,
        "origin": choice.origin.value,
        "outcome": verdict.outcome.value,
        "ok": verdict.ok,
        "reason": verdict.reason,
        "overlay": {"available": False, "applied": False, "outcome": None},
        "minimum_release": verdict.minimum_release,
    }
