"""Two runs of the same questions, answer by answer: is the second one worse?

What two runs got from the same model on the same question differs only by the deployment, so far fewer questions show
a loss than without pairing. An error or a time-out on one side is that side's failure, never a difference in answers.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import Any

from disagg_cli.errors import DisaggError, EvalFailed, EvalUndecided, UsageError
from disagg_cli.evals.plan import Identity
from disagg_cli.evals.record import read_run
from disagg_cli.evals.report import failure_classes
from disagg_cli.evals.settings import check_share
from disagg_cli.evals.states import ANSWERED, Sample, State, with_strange_prompts
from disagg_cli.evals.statistics import Outcome, mcnemar

_Z = 1.6448536269514722  # one-sided 95 %
_SYNTHETIC_IDENTICAL = 0.95
_MOST_PAIRS = 50_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """One of two runs."""

    identity: Identity
    samples: Mapping[str, Sample]

    @classmethod
    def read(cls, folder: Path) -> "Side":
        """From a run's folder. UsageError where it holds none."""
        return cls.of(*read_run(folder))

    @classmethod
    def of(cls, identity: Identity, samples: Sequence[Sample]) -> "Side":
        """From a run in memory."""
        return cls(identity=identity, samples={sample.id: sample for sample in with_strange_prompts(samples)})

    def answered(self, name: str) -> Sample | None:
        """The whole answer to a question, if there is one."""
        sample = self.samples.get(name)
        return sample if sample and sample.state in ANSWERED else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """Where two answers to a question part. `token`: the first piece, counted from 0, that is not the same; None where
    the answers were not streamed. `flip`: lost, gained, or neither."""

    id: str
    flip: str | None
    character: int
    token: int | None
    before: str | None
    after: str | None
    around: tuple[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """The second run against the first. `lost`: right before, wrong now. `latency`: median seconds, before and now."""

    before: str
    after: str
    pairs: int
    identical: int
    lost: int
    gained: int
    right_before: int
    right_after: int
    p_value: float
    worst_loss: float | None
    failed_before: int
    failed_after: int
    prompt_tokens_differ: int
    latency: Mapping[str, tuple[float, float]]
    differences: tuple[Difference, ...]
    outcome: Outcome
    reason: str

    @property
    def identical_share(self) -> float | None:
        """Answers that are the same byte for byte, among those that both runs gave."""
        return self.identical / self.pairs if self.pairs else None

    @property
    def exit_code(self) -> int:
        """0 passed; 6 failed; 7 undecided."""
        return {Outcome.PASS: 0, Outcome.FAIL: 6}.get(self.outcome, 7)

    def error(self) -> DisaggError | None:
        """What a command that ran this comparison ends with; None where it passed."""
        kinds = {6: EvalFailed, 7: EvalUndecided}
        return kinds[self.exit_code](self.reason) if self.exit_code else None

    def document(self) -> dict[str, Any]:
        """`disagg.eval-compare/1`."""
        return {
            "schema": "disagg.eval-compare/1",
            "ok": self.exit_code == 0,
            "exit_code": self.exit_code,
            "identical_share": self.identical_share,
            **asdict(self),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What the second run may lose. `identical`: the least share of identical answers, if any is asked."""

    alpha: float = 0.01
    margin: float = 0.03
    failure_budget: int = 0
    identical: float | None = None

    def __post_init__(self) -> None:
        """Refuse what is no share. UsageError names the option."""
        check_share("min-identical", self.identical, most=1.0)


def compare(before: Side, after: Side, limits: Limits, *, force: bool = False) -> Comparison:
    """Pair two runs by question. UsageError where they asked different things, unless forced."""
    _check(before.identity, after.identity, force=force)
    names = [name for name in before.identity.ids if before.answered(name) and after.answered(name)]
    pairs = [(before.samples[name], after.samples[name]) for name in names]
    lost = sum(first.correct and not second.correct for first, second in pairs)
    gained = sum(second.correct and not first.correct for first, second in pairs)
    differing = [(first, second) for first, second in pairs if first.completion != second.completion]
    failed = (_failed(before), _failed(after))
    figures = _Figures(
        pairs=len(pairs),
        identical=len(pairs) - len(differing),
        lost=lost,
        gained=gained,
        failed=failed,
        cause=_cause((before, after)[failed[1] > 0]),
        synthetic=after.identity.settings.synthetic_weights,
    )
    outcome, reason = _judge(figures, limits)
    return Comparison(
        before=before.identity.url,
        after=after.identity.url,
        pairs=figures.pairs,
        identical=figures.identical,
        lost=lost,
        gained=gained,
        right_before=sum(first.correct for first, _ in pairs),
        right_after=sum(second.correct for _, second in pairs),
        p_value=mcnemar(lost, gained),
        worst_loss=figures.worst_loss,
        failed_before=figures.failed[0],
        failed_after=figures.failed[1],
        prompt_tokens_differ=sum(_tokens_differ(*pair) for pair in pairs),
        latency=_medians(pairs),
        differences=tuple(sorted((_difference(*pair) for pair in differing), key=lambda found: found.flip is None)),
        outcome=outcome,
        reason=reason,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Figures:
    pairs: int
    identical: int
    lost: int
    gained: int
    failed: tuple[int, int]
    cause: str
    synthetic: bool

    @property
    def worst_loss(self) -> float | None:
        """Upper one-sided 95 % bound of the loss in accuracy (Agresti and Min's adjusted interval for pairs)."""
        return _worst_loss(self.pairs, self.lost, self.gained) if self.pairs else None


def _worst_loss(pairs: int, lost: int, gained: int) -> float:
    n, loss = pairs + 2, lost - gained
    spread = lost + gained + 1 - loss * loss / n
    return loss / n + _Z * math.sqrt(spread) / n


def _judge(figures: _Figures, limits: Limits) -> tuple[Outcome, str]:
    first, second = figures.failed
    if first > limits.failure_budget or second > limits.failure_budget:
        counts = f"{first} in the first run, {second} in the second"
        return Outcome.NOT_JUDGED, f"requests failed or were not sent: {counts}{figures.cause}"
    if not figures.pairs:
        return Outcome.NOT_JUDGED, "no question was answered in both runs"
    least = limits.identical if limits.identical is not None else _SYNTHETIC_IDENTICAL if figures.synthetic else None
    share = figures.identical / figures.pairs
    if least is not None and share < least:
        return Outcome.FAIL, f"{share:.1%} of the answers are identical; at least {least:.1%} must be"
    if figures.synthetic:
        return Outcome.PASS, f"{share:.1%} of the answers are identical; with synthetic weights that is what counts"
    return _judge_loss(figures, limits)


def _judge_loss(figures: _Figures, limits: Limits) -> tuple[Outcome, str]:
    told = f"{figures.lost} answers were lost and {figures.gained} gained"
    p_value, worst = mcnemar(figures.lost, figures.gained), figures.worst_loss
    assert worst is not None
    if p_value <= limits.alpha:
        return Outcome.FAIL, f"{told}: chance makes that of equal runs with probability {p_value:.2g}"
    if worst <= limits.margin:
        return (
            Outcome.PASS,
            f"{told}: the loss is below {worst:.4f} with 95 % confidence, and {limits.margin:.4f} is tolerated",
        )
    return (
        Outcome.INCONCLUSIVE,
        f"{told}: the loss may be up to {worst:.4f}, and {limits.margin:.4f} is tolerated; {_more(figures, limits)}",
    )


def _more(figures: _Figures, limits: Limits) -> str:
    """How many pairs would decide, if the shares of lost and gained answers stayed what they are."""
    scale = 1.0
    while scale * figures.pairs < _MOST_PAIRS:
        scale *= 1.05
        lost, gained = round(scale * figures.lost), round(scale * figures.gained)
        pairs = math.ceil(scale * figures.pairs)
        if mcnemar(lost, gained) <= limits.alpha or _worst_loss(pairs, lost, gained) <= limits.margin:
            return f"{pairs} pairs like these would decide"
    return "no number of pairs like these would decide"


def _cause(side: Side) -> str:
    classes = [entry for entry in failure_classes(side.samples.values()) if entry.state is not State.SKIPPED]
    return f"; mostly {classes[0].state} ({classes[0].kind}): {classes[0].message}" if classes else ""


def _failed(side: Side) -> int:
    return sum(name not in side.samples or side.answered(name) is None for name in side.identity.ids)


def _check(before: Identity, after: Identity, *, force: bool) -> None:
    names = ("model", "sha256", "prompt", "scorer", "max_tokens")
    told = [
        f"{name}: {getattr(before, name)} and {getattr(after, name)}"
        for name in names
        if getattr(before, name) != getattr(after, name)
    ]
    if set(before.ids) != set(after.ids):
        told.append(
            f"questions: {len(before.ids)} and {len(after.ids)}, {len(set(before.ids) & set(after.ids))} in both"
        )
    if told and not force:
        raise UsageError("the two runs asked different things: " + "; ".join(told), fix="run both alike, or --force")


def _medians(pairs: Sequence[tuple[Sample, Sample]]) -> dict[str, tuple[float, float]]:
    """Median seconds on both sides: what disaggregation costs is in the time to the first token."""
    found = {}
    for name in ("first_token", "second_token_gap", "end_to_end"):
        known = [
            pair
            for before, after in pairs
            if None not in (pair := (getattr(before, f"{name}_s"), getattr(after, f"{name}_s")))
        ]
        if known:
            found[name] = (median(before for before, _ in known), median(after for _, after in known))
    return found


def _tokens_differ(first: Sample, second: Sample) -> bool:
    return None not in (first.prompt_tokens, second.prompt_tokens) and first.prompt_tokens != second.prompt_tokens


def _difference(first: Sample, second: Sample) -> Difference:
    at = _parting(first.completion, second.completion)
    flip = None if first.correct == second.correct else "lost" if first.correct else "gained"
    return Difference(
        id=first.id,
        flip=flip,
        character=at,
        token=_piece_at(second.pieces, at),
        before=first.answer,
        after=second.answer,
        around=(first.completion[max(0, at - 20) : at + 20], second.completion[max(0, at - 20) : at + 20]),
    )


def _parting(first: str, second: str) -> int:
    """The first character that is not the same."""
    unlike = (at for at, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1])
    return next(unlike, min(len(first), len(second)))


def _piece_at(pieces: Sequence[int], character: int) -> int | None:
    if len(pieces) < 2:
        return None
    return sum(past <= character for past in accumulate(pieces))
