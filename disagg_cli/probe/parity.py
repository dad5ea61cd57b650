"""KV parity: whether the KV cache that decode works on is the one that prefill made.

Two requests for each prompt. The first generates tokens: decode's log-probabilities of them depend on the transferred
KV. The second sends prompt and tokens again, and prefill recomputes the same log-probabilities from scratch. Right KV
gives the same numbers up to rounding; a misplaced head moves them by whole nats (7 to 10 on the synthetic model),
while everything else about the deployment looks healthy.

The rounding is measured, not guessed: the first generated token is prefill's own in both requests, computed in batches
of different shape, so what differs there is no transfer's doing. That is the noise floor.
"""

import asyncio
import math
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import aiohttp

from disagg_cli.errors import ProbeFailed
from disagg_cli.probe.exchange import answers
from disagg_cli.topology.deployment import Worker

TOKENS = 12
VOCABULARY = (100, 500)
"""Token ids that prompts are drawn from: ordinary tokens in every tokenizer of the models that SGLang serves."""
AT_ONCE = 4
INFO_S = 10.0
FLOOR_FACTOR = 20.0
LEAST_TOLERANCE = {"float32": 0.005}
LEAST_TOLERANCE_ELSE = 0.5
"""Nats, by the dtype of the cache. Below it nothing is called wrong, however quiet the floor: decode's kernels sum
in another order than prefill's. Measured on CPUs, largest difference: float32 0.00002, bfloat16 0.06 to 0.13."""
LATE_S = 10.0
"""Seconds for 12 tokens after a short prompt, on a pair that has answered before."""
MOST_TOLERANCE = 2.0
"""Nats. Above it nothing is called right, however loud the floor; two swapped heads give 5 and more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """One prompt of one pair: how long its answer took, and |decode's - prefill's| log-probability of each token."""

    prompt_tokens: int
    seconds: float
    differences: tuple[float, ...]

    @property
    def floor(self) -> float:
        """The difference at the first token, which no transfer touches."""
        return self.differences[0]

    def first_wrong(self, tolerance: float) -> int | None:
        """The first generated token whose log-probability differs by more than the tolerance, or is no number."""
        return next((i for i, value in enumerate(self.differences) if not value <= tolerance), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class ParityResult:
    """One pair's parity over all its prompts. Nats.

    first_wrong is a position among the generated tokens; wrong_prompts are the lengths of prompts that were wrong.
    """

    prefill: str
    decode: str
    tolerance: float
    prompts: tuple[int, ...] = ()
    max_difference: float | None = None
    mean_difference: float | None = None
    first_wrong: int | None = None
    wrong_prompts: tuple[int, ...] = ()
    fastest_s: float | None = None
    error: str | None = None

    @property
    def ok(self) -> bool:
        """Whether decode works on the KV that prefill made."""
        return self.error is None and self.first_wrong is None and not self.late

    @property
    def late(self) -> bool:
        """Whether even the fastest answer took longer than any transfer should."""
        return (self.fastest_s or 0) > LATE_S

    def sentence(self) -> str:
        """The result in words."""
        if self.error:
            return self.error
        numbers = "differences that are no numbers"
        if self.max_difference is not None and self.mean_difference is not None:
            numbers = f"differences of {self.max_difference:.2g} at most, {self.mean_difference:.2g} on average"
        if self.first_wrong is None and self.late:
            return f"KV LATE: the fastest answer took {self.fastest_s:.1f} s (limit {LATE_S:.0f} s)"
        if self.first_wrong is None:
            return f"KV right, {numbers} (tolerance {self.tolerance:.2g} nats)"
        return f"KV WRONG from token {self.first_wrong} on, {numbers} (tolerance {self.tolerance:.2g} nats)"

    def document(self) -> dict[str, Any]:
        """The result as JSON."""
        return {**asdict(self), "ok": self.ok}


def prompt_lengths(page_size: int, chunk: int | None) -> tuple[int, ...]:
    """Lengths at a transfer's edges: at most a page, across pages, across a prefill chunk where there is one.

    A prompt within one page tells lost pages from misplaced heads.
    """
    lengths = [max(1, page_size - 1), max(40, 3 * page_size + page_size // 2)]
    if chunk and 0 < chunk <= 8192:
        lengths.append(chunk + max(5, page_size // 2))
    return tuple(lengths)


async def prove_parity(
    pairs: Sequence[tuple[Worker, Worker]], *, kv_dtype: str, timeout_s: float
) -> tuple[ParityResult, ...]:
    """Compare decode with prefill for every pair, a few at a time. Each prompt has `timeout_s` seconds."""
    turn = asyncio.Semaphore(AT_ONCE)

    async def measure(prefill: Worker, decode: Worker) -> list[Comparison] | str:
        comparisons = []
        try:
            async with turn:
                for length in await _lengths(session, prefill):
                    async with asyncio.timeout(timeout_s):
                        comparisons.append(await compare(session, prefill, decode, length))
            return comparisons
        except TimeoutError:
            return f"no answer within {timeout_s:.0f} s"
        except ProbeFailed as error:
            return error.what
        except (KeyError, IndexError, TypeError) as error:
            return f"an answer lacks what a comparison needs: {type(error).__name__} {error}"

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
        measured = await asyncio.gather(*(measure(prefill, decode) for prefill, decode in pairs))
    floor = max((one.floor for each in measured if isinstance(each, list) for one in each), default=0.0)
    tolerance = tolerance_of(kv_dtype, floor)
    return tuple(
        judge(prefill.name, decode.name, each, tolerance)
        for (prefill, decode), each in zip(pairs, measured, strict=True)
    )


async def _lengths(session: aiohttp.ClientSession, prefill: Worker) -> tuple[int, ...]:
    """Prompt lengths for what the server says of its pages and chunks; those of page 1 where it says nothing."""
    limit = aiohttp.ClientTimeout(total=INFO_S)
    try:
        async with session.get(f"{prefill.url}/server_info", timeout=limit) as response:
            info = await response.json() if response.status == 200 else {}
    except (aiohttp.ClientError, TimeoutError, ValueError):
        info = {}
    lengths = prompt_lengths(int(info.get("page_size") or 1), info.get("chunked_prefill_size"))
    room = min(int(info.get(name) or sys.maxsize) for name in ("context_length", "max_total_num_tokens"))
    return tuple(length for length in lengths if length + TOKENS < room) or lengths[:1]


async def compare(session: aiohttp.ClientSession, prefill: Worker, decode: Worker, length: int) -> Comparison:
    """Run the two requests for one prompt of `length` tokens. ProbeFailed if a server answers neither."""
    prompt = random.choices(range(*VOCABULARY), k=length)  # never the same twice: a cached prefix is not transferred
    generate = {"temperature": 0, "max_new_tokens": TOKENS, "ignore_eos": True}
    begun = time.monotonic()
    _, made = await answers(
        session, prefill, decode, {"input_ids": prompt, "sampling_params": generate, "return_logprob": True}
    )
    seconds = time.monotonic() - begun
    again = {
        "input_ids": prompt + made["output_ids"],
        "sampling_params": {"temperature": 0, "max_new_tokens": 1, "ignore_eos": True},
        "return_logprob": True,
        "logprob_start_len": length - 1,
    }
    recomputed, _ = await answers(session, prefill, decode, again)
    theirs = [entry[0] for entry in made["meta_info"]["output_token_logprobs"]]
    ours = [entry[0] for entry in recomputed["meta_info"]["input_token_logprobs"]][1:]
    if len(theirs) != len(ours):
        raise ProbeFailed(f"{decode.name} made {len(theirs)} tokens, {prefill.name} recomputed {len(ours)}")
    differences = tuple(abs(a - b) for a, b in zip(theirs, ours, strict=True))
    return Comparison(prompt_tokens=length, seconds=seconds, differences=differences)


def tolerance_of(kv_dtype: str, floor: float) -> float:
    """The largest difference, in nats, that rounding explains, given the noise floor of the deployment."""
    return min(MOST_TOLERANCE, max(LEAST_TOLERANCE.get(kv_dtype, LEAST_TOLERANCE_ELSE), FLOOR_FACTOR * floor))


def judge(prefill: str, decode: str, measured: Sequence[Comparison] | str, tolerance: float) -> ParityResult:
    """Hold a pair's differences against a tolerance; a text says why there are none."""
    if isinstance(measured, str):
        return ParityResult(prefill=prefill, decode=decode, tolerance=tolerance, error=measured)
    differences = [value for one in measured for value in one.differences]
    numbers = all(map(math.isfinite, differences))
    firsts = {one.prompt_tokens: one.first_wrong(tolerance) for one in measured}
    wrong = {length: first for length, first in firsts.items() if first is not None}
    return ParityResult(
        prefill=prefill,
        decode=decode,
        prompts=tuple(one.prompt_tokens for one in measured),
        tolerance=round(tolerance, 6),
        max_difference=round(max(differences), 6) if numbers else None,
        mean_difference=round(sum(differences) / len(differences), 6) if numbers else None,
        first_wrong=min(wrong.values(), default=None),
        wrong_prompts=tuple(wrong),
        fastest_s=round(min(one.seconds for one in measured), 3),
    )
