"""Exact tests and intervals for counts of right answers, and the verdict.

Not taken from scipy.stats: importing that costs 1.2 s and 100 MB, more than a whole run of 1,319 questions.
The tests compare every function with scipy's.
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from statistics import NormalDist

POWER = 0.8
CONFIDENCE = 0.95
_LARGEST_N = 50_000


class Outcome(StrEnum):
    """What a run says about the deployment."""

    PASS = "PASS"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"
    NOT_JUDGED = "NOT JUDGED"
    NO_BASELINE = "NO BASELINE"


@dataclass(frozen=True, kw_only=True, slots=True)
class Gate:
    """What a run is held against. `margin`: the drop that is tolerated; `alpha`: the share of false alarms in FAIL."""

    baseline: float
    margin: float = 0.03
    alpha: float = 0.01
    floor: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The outcome and its reason. `needed`: the n that would decide at the same accuracy; None: none that is sane."""

    outcome: Outcome
    reason: str
    p_value: float | None = None
    lower: float | None = None
    upper: float | None = None
    detectable_drop: float | None = None
    needed: int | None = None


def judge(right: int, n: int, gate: Gate) -> Verdict:
    """PASS, FAIL or INCONCLUSIVE for `right` of n answers.

    PASS comes before the exact test: with many questions that test proves losses far smaller than the margin, which the
    user tolerates; the reason then says so. With few, it sees a loss before the interval is narrow enough.
    """
    p_value = binomial_at_most(right, n, gate.baseline)
    lower, upper = wilson_bound(right, n, upper=False), wilson_bound(right, n, upper=True)
    outcome, reason = _decide(right, n, gate, p_value, lower, upper)
    return Verdict(
        outcome=outcome,
        reason=reason,
        p_value=p_value,
        lower=lower,
        upper=upper,
        detectable_drop=detectable_drop(n, gate.baseline, gate.alpha),
        needed=needed(right, n, gate) if outcome is Outcome.INCONCLUSIVE else None,
    )


def _decide(right: int, n: int, gate: Gate, p_value: float, lower: float, upper: float) -> tuple[Outcome, str]:
    least = gate.baseline - gate.margin
    if gate.floor is not None and right / n < gate.floor:
        return Outcome.FAIL, below_floor(right, n, gate.floor)
    if lower >= least:
        proven = f"; it is lower than the baseline all the same (p = {p_value:.2g})" if p_value <= gate.alpha else ""
        return Outcome.PASS, f"accuracy is above {lower:.4f} with 95 % confidence, and {least:.4f} is tolerated{proven}"
    if p_value <= gate.alpha:
        return (
            Outcome.FAIL,
            f"{right} of {n} would come with probability {p_value:.2g} if accuracy were {gate.baseline:.4f}",
        )
    if upper < least:
        return Outcome.FAIL, f"accuracy is below {upper:.4f} with 95 % confidence, and {least:.4f} is tolerated"
    return Outcome.INCONCLUSIVE, f"accuracy may lie between {lower:.4f} and {upper:.4f}, and {least:.4f} is tolerated"


def below_floor(right: int, n: int, floor: float) -> str:
    """Why a run fails whatever its baseline."""
    return f"accuracy {right / n:.4f} is below the floor {floor:.4f}"


def needed(right: int, n: int, gate: Gate) -> int | None:
    """The least n, in steps of about 2 %, at which the same accuracy would be decided."""
    accuracy = right / n
    while n < _LARGEST_N:
        n += max(1, n // 50)
        right = round(accuracy * n)
        p_value = binomial_at_most(right, n, gate.baseline)
        bounds = wilson_bound(right, n, upper=False), wilson_bound(right, n, upper=True)
        if _decide(right, n, gate, p_value, *bounds)[0] is not Outcome.INCONCLUSIVE:
            return n
    return None


def wilson(right: int, n: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The two-sided Wilson score interval of a share."""
    return _wilson(right, n, NormalDist().inv_cdf((1 + confidence) / 2))


def wilson_bound(right: int, n: int, *, upper: bool, confidence: float = CONFIDENCE) -> float:
    """One one-sided Wilson bound of a share."""
    return _wilson(right, n, NormalDist().inv_cdf(confidence))[upper]


def _wilson(right: int, n: int, z: float) -> tuple[float, float]:
    if n == 0:
        return 0.0, 1.0
    share, spread = right / n, z * z / n
    middle = (share + spread / 2) / (1 + spread)
    half = z * math.sqrt(share * (1 - share) / n + spread / (4 * n)) / (1 + spread)
    return (0.0 if right == 0 else middle - half), (1.0 if right == n else middle + half)


def binomial_at_most(k: int, n: int, p: float) -> float:
    """P(X <= k) for X ~ Bin(n, p), exact to about twelve digits."""
    if k >= n or p <= 0:
        return 1.0
    if k < 0 or p >= 1:
        return 0.0
    if k > n * p:
        return 1.0 - binomial_at_most(n - k - 1, n, 1 - p)
    term = math.exp(_log_choose(n, k) + k * math.log(p) + (n - k) * math.log1p(-p))
    total, odds = 0.0, (1 - p) / p
    while k >= 0 and term > total * 1e-17:  # terms only shrink below the mean
        total += term
        term *= odds * k / (n - k + 1)
        k -= 1
    return total


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


@cache
def critical(n: int, baseline: float, alpha: float) -> int:
    """The largest count of right answers that the exact test rejects; -1 where it can reject none."""
    low, high = -1, n
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if binomial_at_most(middle, n, baseline) <= alpha else (low, middle)
    return low


def detectable_drop(n: int, baseline: float, alpha: float) -> float | None:
    """The smallest drop below the baseline that n answers show with probability 0.8; None where none can be shown."""
    most = critical(n, baseline, alpha)
    if most < 0:
        return None
    low, high = 0.0, baseline
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (low, middle) if binomial_at_most(most, n, baseline - middle) >= POWER else (middle, high)
    return high


def mcnemar(lost: int, gained: int) -> float:
    """One-sided exact McNemar: P(Bin(lost + gained, 1/2) >= lost). `lost`: right before, wrong now."""
    return binomial_at_most(gained, lost + gained, 0.5)


def hypergeometric_at_most(k: int, drawn: int, marked: int, total: int) -> float:
    """P(X <= k) for X marked ones among `drawn` of `total`, of which `marked` are: Fisher's exact test, one-sided."""
    least, most = max(0, drawn + marked - total), min(drawn, marked)
    if k >= most:
        return 1.0
    whole = _log_choose(total, drawn)
    ways = (_log_choose(marked, x) + _log_choose(total - marked, drawn - x) - whole for x in range(least, k + 1))
    return min(1.0, sum(map(math.exp, ways)))
