"""The plan report: what `disagg plan` shows and what `disagg launch` refuses by. One object for both."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from disagg_cli.connector.case import Case, case_of
from disagg_cli.connector.descriptors import Descriptors, count_descriptors
from disagg_cli.connector.releases import Choice, known_releases
from disagg_cli.connector.repairs import judge_repaired, repairs
from disagg_cli.connector.verdict import Verdict, judge_case, judge_pools, judge_releases, wrong_decode_ranks
from disagg_cli.findings.document import plan_document
from disagg_cli.findings.finding import Finding, Severity
from disagg_cli.findings.plan_rules import (
    Judged,
    judge_plan,
    mixed_pools,
    overlay_required,
    with_a_way_out,
    with_overlay,
)
from disagg_cli.kv.coverage import Coverage, cover
from disagg_cli.kv.layout import KVLayout
from disagg_cli.kv.parallelism import Parallelism
from disagg_cli.kv.plan import SlicePlan, plan_slices
from disagg_cli.kv.request import Request
from disagg_cli.kv.traffic import Traffic, measure

Overlay = Literal["auto", "off", "require"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolReport:
    """One decode pool behind the prefill pool.

    `plan`, `coverage`, `traffic` and `descriptors` are None where the model does not load. `wrong_ranks` are the decode
    ranks that get wrong bytes on the chosen release; `releases` holds every known release's verdict, where it was asked
    for; `repaired` and `repaired_releases` say what the overlay makes of it, None where it does not apply.
    """

    where: str
    decode: Parallelism
    plan: SlicePlan | None
    coverage: Coverage | None
    verdict: Verdict
    findings: tuple[Finding, ...]
    traffic: Traffic | None = None
    descriptors: Descriptors | None = None
    wrong_ranks: tuple[int, ...] = ()
    releases: Mapping[str, Verdict] | None = None
    repaired: Verdict | None = None
    repaired_releases: Mapping[str, Verdict | None] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanReport:
    """A prefill pool, its decode pools, and everything said about them. overlay: whether it counts on the overlay."""

    layout: KVLayout
    prefill: Parallelism
    pools: tuple[PoolReport, ...]
    choice: Choice
    findings: tuple[Finding, ...]
    overlay: bool = False
    request: Request = field(default_factory=Request)

    @property
    def ok(self) -> bool:
        """Whether nothing forbids a launch."""
        return not any(found.severity is Severity.ERROR for found in self.findings)

    def document(self) -> dict[str, Any]:
        """The report as `disagg.plan/1`."""
        return plan_document(self)


def report_plan(
    layout: KVLayout,
    prefill: Parallelism,
    decode_pools: Sequence[Parallelism],
    choice: Choice,
    *,
    request: Request | None = None,
    all_releases: bool = False,
    overlay: Overlay = "off",
) -> PlanReport:
    """Plan and judge a prefill pool with its decode pools on the chosen SGLang release.

    With `all_releases` each pool is also judged on every known one. `overlay`: off judges the stock connector; auto
    counts on the overlay where stock is wrong and the overlay repairs it; require counts on it in any case.
    """
    asked = request or Request()
    names = ["decode"] if len(decode_pools) == 1 else [f"decode[{i}]" for i in range(len(decode_pools))]
    pools = tuple(
        _report_pool(layout, prefill, pool, choice, where, asked, all_releases=all_releases)
        for where, pool in zip(names, decode_pools, strict=True)
    )
    mix = judge_pools(
        choice.release,
        prefill.attention_tp,
        [pool.attention_tp for pool in decode_pools],
        layout.total_kv_heads,
        kind=layout.kind,
        latent=layout.latent,
    )
    findings = [found for pool in pools for found in pool.findings]
    findings += mixed_pools(mix, decode_pools)
    stock_right = mix.ok and all(pool.verdict.ok for pool in pools)
    repaired = repairs(choice.release, [case_of(layout, prefill, pool) for pool in decode_pools])
    counts_on_it = repaired and (overlay == "require" or (overlay == "auto" and not stock_right))
    if counts_on_it:
        findings = with_overlay(findings, where=", ".join(names))
    elif repaired and not stock_right:
        findings = with_a_way_out(findings)
    elif overlay == "require":
        findings += overlay_required(choice, where=", ".join(names))
    return PlanReport(
        layout=layout,
        prefill=prefill,
        pools=pools,
        choice=choice,
        findings=tuple(dict.fromkeys(findings)),
        overlay=counts_on_it,
        request=asked,
    )


def _report_pool(
    layout: KVLayout,
    prefill: Parallelism,
    decode: Parallelism,
    choice: Choice,
    where: str,
    request: Request,
    *,
    all_releases: bool,
) -> PoolReport:
    plan = plan_slices(layout, prefill, decode)
    case = case_of(layout, prefill, decode)
    verdict = judge_case(choice.release, case)
    traffic = measure(plan, request.tokens) if plan else None
    judged = Judged(
        layout=layout,
        prefill=prefill,
        decode=decode,
        plan=plan,
        verdict=verdict,
        choice=choice,
        case=case,
        traffic=traffic,
        request=request,
        where=where,
    )
    return PoolReport(
        where=where,
        decode=decode,
        plan=plan,
        coverage=cover(plan) if plan else None,
        verdict=verdict,
        findings=judge_plan(judged),
        traffic=traffic,
        descriptors=_descriptors(choice, case, plan, request),
        wrong_ranks=wrong_decode_ranks(choice.release, case),
        releases=judge_releases(case) if all_releases else None,
        repaired=judge_repaired(choice.release, case),
        repaired_releases={known.name: judge_repaired(known, case) for known in known_releases()}
        if all_releases
        else None,
    )


def _descriptors(choice: Choice, case: Case, plan: SlicePlan | None, request: Request) -> Descriptors | None:
    if plan is None or not plan.routes:
        return None
    return count_descriptors(
        choice.release.connector,
        case,
        plan,
        tokens=request.tokens,
        page_size=request.page_size,
        pool_tokens=request.pool_tokens,
    )
