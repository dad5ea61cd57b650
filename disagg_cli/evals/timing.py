"""What a client can measure of a streamed answer, and how such figures are summed up.

first token   from sending to the first piece of text (client queueing is before, and not counted). In SGLang's PD
              serving the decode worker streams the answer, and gets prefill's token together with the KV (0.5.23,
              disaggregation/decode.py, _commit_transfer_to_req): prefill, bootstrap and transfer are all in here.
              What the transfer costs is the difference from an aggregated server
second token  the gap from the first to the second: decode's first step, and the transfer only on a server that sends
              prefill's token before the KV has moved
itl           gaps between arrivals, per token: servers and networks put several tokens into one piece
tpot          (end to end - first token) / (tokens - 1)
end to end    from sending to the end of the body
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

LATENCIES = {
    "first_token": "first token",
    "second_token_gap": "first to second token",
    "inter_token": "between tokens",
    "per_output_token": "per output token",
    "end_to_end": "whole answer",
}
"""What a report calls each of its latencies."""

# Buckets of the gap histogram are 2 % wide: percentiles are as good, and two runs' histograms can be added.
_PER_E = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """One answer, in seconds. `gaps`: histogram of gaps per token, by `bucket`."""

    first_token_s: float | None
    second_token_gap_s: float | None
    tpot_s: float | None
    end_to_end_s: float
    gaps: Mapping[int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Percentiles:
    """A summary of n values."""

    n: int
    p50: float
    p90: float
    p99: float
    max: float


def measure(start: float, arrivals: Sequence[tuple[float, int]], end: float, tokens: int | None) -> Timing:
    """From the times (seconds, one clock) at which pieces arrived, with how many pieces came at once."""
    pieces = sum(count for _, count in arrivals)
    per_piece = tokens / pieces if tokens and pieces and tokens > pieces else 1.0
    first = arrivals[0][0] if arrivals else None
    tpot = (end - first) / (tokens - 1) if first is not None and tokens and tokens > 1 else None
    return Timing(
        first_token_s=None if first is None else first - start,
        second_token_gap_s=_second_gap(arrivals),
        tpot_s=tpot,
        end_to_end_s=end - start,
        gaps=_gaps(arrivals, per_piece),
    )


def _second_gap(arrivals: Sequence[tuple[float, int]]) -> float | None:
    """Zero where the first two pieces came at once."""
    if not arrivals or sum(count for _, count in arrivals[:2]) < 2:
        return None
    return 0.0 if arrivals[0][1] > 1 else arrivals[1][0] - arrivals[0][0]


def _gaps(arrivals: Sequence[tuple[float, int]], tokens_per_piece: float) -> Mapping[int, int]:
    histogram: Counter[int] = Counter()
    for (before, _), (now, count) in pairwise(arrivals):
        histogram[bucket((now - before) / (count * tokens_per_piece))] += count
    return histogram


def bucket(seconds: float) -> int:
    """The histogram bucket of a duration, on a logarithmic scale of microseconds."""
    return int(_PER_E * math.log(max(seconds * 1e6, 1.0)))


def percentiles(values: Iterable[float | None]) -> Percentiles | None:
    """Nearest-rank percentiles of the values that are there; None where there are none."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return None
    at = [known[_rank(len(known), share)] for share in (0.50, 0.90, 0.99)]
    return Percentiles(n=len(known), p50=at[0], p90=at[1], p99=at[2], max=known[-1])


def histogram_percentiles(histograms: Iterable[Mapping[int, int]]) -> Percentiles | None:
    """The same from histograms of `bucket`, to within 1 %."""
    total: Counter[int] = Counter()
    for histogram in histograms:
        for key, count in histogram.items():
            total[key] += count
    n = sum(total.values())
    if not n:
        return None
    ranks = [_rank(n, share) for share in (0.50, 0.90, 0.99)] + [n - 1]
    at = [_seconds(_bucket_at(total, rank)) for rank in ranks]
    return Percentiles(n=n, p50=at[0], p90=at[1], p99=at[2], max=at[3])


def _rank(n: int, share: float) -> int:
    return max(0, math.ceil(n * share) - 1)


def _bucket_at(total: Mapping[int, int], rank: int) -> int:
    seen = 0
    for key in sorted(total):
        seen += total[key]
        if seen > rank:
            return key
    return max(total)


def _seconds(key: int) -> float:
    return math.exp((key + 0.5) / _PER_E) / 1e6 if key else 0.0
