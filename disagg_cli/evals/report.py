"""What a run found, as one value: counts, accuracy, verdict, latency, failures. Pure: made from samples alone."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any

from disagg_cli.errors import DisaggError, EvalFailed, EvalUndecided
from disagg_cli.evals.plan import Identity
from disagg_cli.evals.served import Counters
from disagg_cli.evals.settings import EvalSettings
from disagg_cli.evals.states import ANSWERED, Sample, State, with_strange_prompts
from disagg_cli.evals.statistics import Outcome, Verdict, below_floor, hypergeometric_at_most, judge, wilson
from disagg_cli.evals.timing import Percentiles, histogram_percentiles, percentiles

_EXIT = {Outcome.PASS: 0, Outcome.NO_BASELINE: 0, Outcome.FAIL: 6, Outcome.INCONCLUSIVE: 7, Outcome.NOT_JUDGED: 7}
_GARBAGE_SHARE, _GARBAGE_LEAST = 0.01, 3
_TRUNCATED_SHARE = 0.01
_DECAY_ALPHA = 0.001
_HUNG_LISTED = 50
_CAUSE_LENGTH = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What a report tells beside its samples. `stopped`: why the run ended before its plan, if it did."""

    stopped: str | None = None
    notes: tuple[str, ...] = ()
    versions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    counters: tuple[Counters, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureClass:
    """Failures of one kind: how many, one message, and the requests and bootstrap rooms to look for in the logs."""

    state: State
    kind: str
    status: int | None
    count: int
    message: str
    rids: tuple[str, ...]
    rooms: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """Right answers among a part of all answers."""

    answered: int
    right: int


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalReport:
    """The result of a run. `right` counts truncated answers whose number is right as well; counts do not merge them."""

    identity: Identity
    planned: int
    counts: Mapping[State, int]
    right: int
    right_strict: int
    right_flexible: int
    verdict: Verdict
    facts: Facts
    quarters: tuple[Share, ...]
    decay: float
    by_rank: Mapping[int, Share]
    retractions: int | None
    repetition: int
    empty: int
    failures: tuple[FailureClass, ...]
    hung: tuple[Mapping[str, Any], ...]
    latency: Mapping[str, Percentiles | None]
    wall_s: float
    completion_tokens: int
    wasted_tokens: int
    prompt_tokens: int
    cached_tokens: int | None
    finish_reasons: Mapping[str, int]
    matched_stops: Mapping[str, int]

    @property
    def answered(self) -> int:
        """Questions with a whole answer, right or not."""
        return sum(self.counts[state] for state in ANSWERED)

    @property
    def accuracy(self) -> float | None:
        """Right answers over answered questions."""
        return self.right / self.answered if self.answered else None

    @property
    def accuracy_planned(self) -> float:
        """Right answers over all planned questions."""
        return self.right / self.planned

    @property
    def output_throughput(self) -> float:
        """Tokens of whole answers per second, from the first request to the last end."""
        return self.completion_tokens / self.wall_s if self.wall_s else 0.0

    @property
    def requests_per_second(self) -> float:
        """Whole answers per second."""
        return self.answered / self.wall_s if self.wall_s else 0.0

    @property
    def exit_code(self) -> int:
        """0 passed, or nothing to judge by; 6 failed; 7 undecided."""
        return _EXIT[self.verdict.outcome]

    def error(self) -> DisaggError | None:
        """The error that ends a command after this run; None after a good one."""
        if self.exit_code == 0:
            return None
        kind = EvalFailed if self.verdict.outcome is Outcome.FAIL else EvalUndecided
        return kind(f"GSM8K: {self.verdict.outcome}: {self.verdict.reason}", where=self.identity.url, fix=self._fix())

    def _fix(self) -> str:
        if self.verdict.outcome is Outcome.INCONCLUSIVE and self.verdict.needed:
            return f"--questions {self.verdict.needed} would decide at the same accuracy"
        if self.failures:
            return f"look for {self.failures[0].rids[0]} in the workers' logs"
        return "read samples.jsonl: what the wrong answers have in common"

    def document(self) -> dict[str, Any]:
        """summary.json, `disagg.eval/1`."""
        interval = wilson(self.right, self.answered) if self.answered else None
        return {
            "schema": "disagg.eval/1",
            "ok": self.exit_code == 0,
            "exit_code": self.exit_code,
            "verdict": asdict(self.verdict),
            **self.identity.to_dict(),
            "planned": self.planned,
            "answered": self.answered,
            "counts": dict(self.counts),
            "right": self.right,
            "accuracy": self.accuracy,
            "accuracy_planned": self.accuracy_planned,
            "accuracy_strict": self.right_strict / self.answered if self.answered else None,
            "accuracy_flexible": self.right_flexible / self.answered if self.answered else None,
            "interval": interval,
            "quarters": [asdict(quarter) for quarter in self.quarters],
            "order_p_value": self.decay,
            "by_dp_rank": {rank: asdict(share) for rank, share in self.by_rank.items()},
            "retractions": self.retractions,
            "repetition": self.repetition,
            "empty": self.empty,
            "stopped": self.facts.stopped,
            "notes": list(self.facts.notes),
            "servers": {url: dict(told) for url, told in self.facts.versions.items()},
            "workers": [asdict(entry) for entry in self.facts.counters],
            "failures": [asdict(entry) for entry in self.failures],
            "hung": list(self.hung),
            "latency_s": {name: asdict(entry) if entry else None for name, entry in self.latency.items()},
            "throughput": {
                "wall_s": self.wall_s,
                "output_tokens_per_s": self.output_throughput,
                "requests_per_s": self.requests_per_second,
                "prompt_tokens": self.prompt_tokens,
                "cached_tokens": self.cached_tokens,
                "completion_tokens": self.completion_tokens,
                "wasted_tokens": self.wasted_tokens,
            },
            "finish_reasons": dict(self.finish_reasons),
            "matched_stops": dict(self.matched_stops),
        }


def build(identity: Identity, samples: Iterable[Sample], facts: Facts | None = None) -> EvalReport:
    """Sum up a run."""
    facts = facts or Facts()
    final = sorted(with_strange_prompts(samples), key=lambda sample: sample.order)
    planned = len(identity.ids)
    counts = Counter(sample.state for sample in final)
    counts[State.SKIPPED] += planned - len(final)
    answered = [sample for sample in final if sample.state in ANSWERED]
    failures = failure_classes(final)
    notes = tuple(dict.fromkeys((*facts.notes, *_notes(identity, counts, answered, facts))))
    return EvalReport(
        identity=identity,
        planned=planned,
        counts={state: counts[state] for state in State},
        right=sum(sample.correct for sample in answered),
        right_strict=sum(sample.correct_strict for sample in answered),
        right_flexible=sum(sample.correct_flexible for sample in answered),
        verdict=_verdict(identity.settings, counts, answered, _with_cause(facts.stopped, failures)),
        facts=replace(facts, notes=notes),
        quarters=_quarters(answered),
        decay=_decay(answered),
        by_rank=_by_rank(answered),
        retractions=_total(sample.server.get("num_retractions") for sample in answered),
        repetition=sum(sample.repetition for sample in answered),
        empty=sum(not sample.completion.strip() for sample in answered),
        failures=failures,
        hung=_hung(final),
        latency=_latency(answered),
        wall_s=_wall(final),
        completion_tokens=sum(sample.completion_tokens or 0 for sample in answered),
        wasted_tokens=sum(sample.completion_tokens or 0 for sample in final if sample.state not in ANSWERED),
        prompt_tokens=sum(sample.prompt_tokens or 0 for sample in answered),
        cached_tokens=_total(sample.cached_tokens for sample in answered),
        finish_reasons=Counter(sample.finish_reason or "none" for sample in final),
        matched_stops=Counter(str(sample.matched_stop) for sample in answered),
    )


def _verdict(
    settings: EvalSettings, counts: Mapping[State, int], answered: Sequence[Sample], stopped: str | None
) -> Verdict:
    reason = _unjudgeable(settings, counts, answered, stopped)
    if reason:
        return Verdict(outcome=Outcome.NOT_JUDGED, reason=reason)
    if stopped and stopped.startswith(CATASTROPHE):
        return Verdict(outcome=Outcome.FAIL, reason=stopped)
    if settings.synthetic_weights:
        return Verdict(
            outcome=Outcome.NO_BASELINE,
            reason="the weights are synthetic: what is checked is the transfer, not the score",
        )
    right = sum(sample.correct for sample in answered)
    if settings.gate is None:
        return _without_baseline(settings, right, len(answered))
    garbage = sum(sample.repetition for sample in answered)
    if garbage >= _GARBAGE_LEAST and garbage > _GARBAGE_SHARE * len(answered):
        return Verdict(outcome=Outcome.FAIL, reason=f"{garbage} of {len(answered)} answers end in endless repetition")
    return judge(right, len(answered), settings.gate)


def _without_baseline(settings: EvalSettings, right: int, n: int) -> Verdict:
    if settings.floor is not None and right / n < settings.floor:
        return Verdict(outcome=Outcome.FAIL, reason=below_floor(right, n, settings.floor))
    return Verdict(outcome=Outcome.NO_BASELINE, reason="no --baseline was given, so the score is only reported")


def _with_cause(stopped: str | None, failures: Sequence[FailureClass]) -> str | None:
    """Why a run stopped, with the commonest failure, if there was one."""
    causes = [entry.message for entry in failures if entry.state is not State.SKIPPED]
    if not stopped or not causes or stopped.startswith(CATASTROPHE):
        return stopped
    return f"{stopped}, mostly: {causes[0][:_CAUSE_LENGTH]}"


CATASTROPHE = "stopped early"
"""How `stopped` begins where the score was so low that the rest could not matter."""


def _unjudgeable(
    settings: EvalSettings, counts: Mapping[State, int], answered: Sequence[Sample], stopped: str | None
) -> str | None:
    lost = counts[State.ERROR] + counts[State.TIMEOUT]
    if lost > settings.failure_budget:
        parts = f"{counts[State.ERROR]} error, {counts[State.TIMEOUT]} timeout; the budget is {settings.failure_budget}"
        return f"{lost} of the requests failed in transport ({parts})" + (f"; {stopped}" if stopped else "")
    if stopped and counts[State.SKIPPED] and not stopped.startswith(CATASTROPHE):
        return f"{counts[State.SKIPPED]} of the planned questions were not answered: {stopped}"
    return None if answered else "no question was answered"


def _notes(identity: Identity, counts: Mapping[State, int], answered: Sequence[Sample], facts: Facts) -> Iterator[str]:
    settings = identity.settings
    if settings.synthetic_weights:
        yield "the weights are synthetic (random): the check is that every answer came through the transfer"
    if identity.custom_data:
        yield f"custom data (sha256 {identity.sha256[:16]}): the score compares with no published figure"
    if counts[State.TRUNCATED] > _TRUNCATED_SHARE * len(answered) and not settings.synthetic_weights:
        yield f"{counts[State.TRUNCATED]} answers were truncated; raise --max-tokens (now {identity.max_tokens})"
    if _decay(answered) <= _DECAY_ALPHA:
        yield "later answers are worse than earlier ones: look for KV that is corrupted as the run goes on"
    for worker in facts.counters:
        yield from worker.notes()


def _quarters(answered: Sequence[Sample]) -> tuple[Share, ...]:
    cuts = [len(answered) * part // 4 for part in range(5)]
    return tuple(_share(answered[first:past]) for first, past in pairwise(cuts))


def _share(answered: Sequence[Sample]) -> Share:
    return Share(answered=len(answered), right=sum(sample.correct for sample in answered))


def _decay(answered: Sequence[Sample]) -> float:
    """One-sided p value that the second half, in the order of completion, is not worse than the first."""
    half = len(answered) // 2
    early, late = _share(answered[:half]), _share(answered[half:])
    return hypergeometric_at_most(late.right, late.answered, early.right + late.right, len(answered))


def _by_rank(answered: Sequence[Sample]) -> dict[int, Share]:
    ranks = sorted({sample.server["dp_rank"] for sample in answered if "dp_rank" in sample.server})
    return {rank: _share([sample for sample in answered if sample.server.get("dp_rank") == rank]) for rank in ranks}


def _total(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def failure_classes(samples: Iterable[Sample]) -> tuple[FailureClass, ...]:
    """Failures that differ in nothing but numbers, together; the commonest first."""
    classes: dict[tuple[State, str, int | None, str], list[Sample]] = {}
    for sample in samples:
        if sample.failure:
            alike = re.sub(r"[0-9a-f]{8,}|\d+(\.\d+)?", "N", sample.failure.message)
            classes.setdefault((sample.state, sample.failure.kind, sample.failure.status, alike), []).append(sample)
    entries = [_failure_class(members) for members in classes.values()]
    return tuple(sorted(entries, key=lambda entry: -entry.count))


def _failure_class(members: Sequence[Sample]) -> FailureClass:
    first = members[0].failure
    assert first is not None
    rooms = {sample.failure.room for sample in members if sample.failure and sample.failure.room}
    return FailureClass(
        state=members[0].state,
        kind=first.kind,
        status=first.status,
        count=len(members),
        message=first.message,
        rids=tuple(sample.rid for sample in members[:5]),
        rooms=tuple(sorted(rooms)[:5]),
    )


def _hung(samples: Sequence[Sample]) -> tuple[Mapping[str, Any], ...]:
    hung = [sample for sample in samples if sample.state is State.TIMEOUT]
    return tuple(
        {
            "rid": sample.rid,
            "id": sample.id,
            "deadline": sample.failure.kind if sample.failure else None,
            "age_s": round(sample.end_to_end_s, 3),
            "bytes_received": sample.bytes_received,
        }
        for sample in hung[:_HUNG_LISTED]
    )


def _latency(answered: Sequence[Sample]) -> dict[str, Percentiles | None]:
    return {
        "first_token": percentiles(sample.first_token_s for sample in answered),
        "second_token_gap": percentiles(sample.second_token_gap_s for sample in answered),
        "inter_token": histogram_percentiles(sample.gaps for sample in answered),
        "per_output_token": percentiles(sample.tpot_s for sample in answered),
        "end_to_end": percentiles(sample.end_to_end_s for sample in answered),
    }


def _wall(samples: Sequence[Sample]) -> float:
    """Seconds in which a request was in flight: not those between a run's end and its resumption."""
    wall, until = 0.0, -math.inf
    for sample in sorted(samples, key=lambda sample: sample.started_at):
        end = sample.started_at + sample.end_to_end_s
        wall += max(0.0, end - max(until, sample.started_at))
        until = max(until, end)
    return wall
