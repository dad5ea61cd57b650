"""Why a pair did not move KV, or what its wrong KV looks like: by the plan, both logs and both workers' queues."""

from collections.abc import Iterable, Mapping, Sequence

from disagg_cli.connector import witness
from disagg_cli.connector.case import case_of
from disagg_cli.findings.report import PlanReport, PoolReport
from disagg_cli.kv.plan import SlicePlan
from disagg_cli.probe.diagnosis import Diagnosis, Evidence, diagnose, suspect
from disagg_cli.probe.pairs import PairResult
from disagg_cli.probe.parity import ParityResult
from disagg_cli.runtime.logs import both_ends, size, text_since
from disagg_cli.runtime.prepare import parallelism
from disagg_cli.runtime.rundir import RunDir
from disagg_cli.topology.deployment import Worker, bracketed

MOST_OF_A_LOG = 4 << 20
"""Bytes at each end of a log in which the cause is looked for; what is loaded stands at its beginning."""


def cause_of(
    result: PairResult | ParityResult,
    pair: tuple[Worker, Worker],
    plans: Sequence[PlanReport],
    run: RunDir,
    marks: Mapping[str, int] | None = None,
) -> Diagnosis | None:
    """The cause of a pair's failure; None where a comparison of KV did not come about.

    marks: how long each worker's log was before the request was sent, where it had served before (`log_sizes`).
    """
    prefill, decode = pair
    plan, pool = planned(plans, prefill, decode)
    case = case_of(plan.layout, plan.prefill, pool.decode)
    if isinstance(result, ParityResult):
        return suspect(result, case, pool.plan) if result.wrong_prompts else None
    marks = marks or {}
    prefill_log, decode_log = (both_ends(run.log(worker.name), MOST_OF_A_LOG) for worker in pair)
    prefill_new, decode_new = (text_since(run.log(worker.name), marks.get(worker.name, 0)) for worker in pair)
    return diagnose(
        Evidence(
            prefill_log=prefill_log,
            decode_log=decode_log,
            prefill_new=prefill_new,
            decode_new=decode_new,
            address=f"{bracketed(prefill.host.address)}:{prefill.ports.bootstrap}",
            prefill_done=result.prefill_done,
            room=result.room,
            timed_out=result.timed_out,
            prefill_tp=case.prefill_tp,
            decode_tp=case.decode_tp,
            kv_heads=case.kv_heads,
            expected=_senders(pool.plan),
            heard=witness.read(decode_log, result.room),
            queues=result.queues,
        )
    )


def log_sizes(run: RunDir, workers: Iterable[Worker]) -> dict[str, int]:
    """How long each worker's log is now, by name."""
    return {worker.name: size(run.log(worker.name)) for worker in workers}


def planned(plans: Sequence[PlanReport], prefill: Worker, decode: Worker) -> tuple[PlanReport, PoolReport]:
    """The plan of a pair's pools."""
    plan = next(plan for plan in plans if plan.prefill == parallelism(prefill))
    return plan, next(pool for pool in plan.pools if pool.decode == parallelism(decode))


def _senders(plan: SlicePlan | None) -> dict[int, tuple[int, ...]]:
    """Decode rank -> the prefill ranks that report to it. With stages the keys are others, and none are given."""
    if plan is None or plan.prefill.pp > 1:
        return {}
    senders: dict[int, tuple[int, ...]] = {}
    for route in plan.routes:
        senders[route.decode_rank] = (*senders.get(route.decode_rank, ()), route.prefill_rank)
    return senders
