"""KV parity: whether the KV cache that decode works on is the one that prefill made.

Two requests for each prompt. The first generates tokens: decode's log-probabilities of them depend on the transferred
KV. The second sends prompt and tokens again, and prefill recomputes the same log-probabilities from scratch. Right KV
gives the same numbers up to rounding; a misplaced head moves them by whole nats (7 to 10 on the synthetic model),
while everything else about the deployment looks healthy.

The rounding is measured, not guessed: the first generated token is prefill's own in both requests, computed in batches
of different shape, so what differs there is no transfer's doing. That is the noise floor.
"""

import asyncio
import contextlib
import math
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import aiohttp

from disagg_cli.api_key import api_key_header
from disagg_cli.errors import ProbeFailed
from disagg_cli.http import UNTIMED
from disagg_cli.probe.exchange import NO_TRANSFER, answers, groups
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
"""Seconds that a transfer may add to an answer, on a pair that has answered before."""
LONGEST_ON_CPU, LONGEST = 8192, 65536
"""Tokens of the longest prefill chunk that a prompt is made to cross; a longer one costs minutes on CPUs."""
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
class Measured:
    """What the prompts of one pair gave; error: why there is nothing to compare. The rest as in ParityResult."""

    comparisons: tuple[Comparison, ...] = ()
    alone_s: float = 0.0
    uncrossed_chunk: int | None = None
    error: str | None = None
    timed_out: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ParityResult:
    """One pair's parity over all its prompts. Nats.

    first_wrong is a position among the generated tokens; wrong_prompts are the lengths of prompts that were wrong.
    alone_s: what a slow answer took both servers without a transfer, 0 where no answer was slow. uncrossed_chunk: the
    prefill chunk that no prompt was long enough to cross. timed_out: whether `error` is that no answer came in time.
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
    alone_s: float = 0.0
    uncrossed_chunk: int | None = None
    error: str | None = None
    timed_out: bool = False

    @property
    def ok(self) -> bool:
        """Whether decode works on the KV that prefill made."""
        return self.error is None and self.first_wrong is None and not self.late

    @property
    def late(self) -> bool:
        """Whether even in the fastest answer the transfer took longer than any should."""
        return (self.fastest_s or 0) - self.alone_s > LATE_S

    def sentence(self) -> str:
        """The result in words."""
        if self.error:
            return self.error
        numbers = "differences that are no numbers"
        if self.max_difference is not None and self.mean_difference is not None:
            numbers = f"differences of {self.max_difference:.2g} at most, {self.mean_difference:.2g} on average"
        if self.first_wrong is None and self.late:
            return (
                f"KV LATE: the fastest answer took {self.fastest_s:.1f} s, {self.alone_s:.1f} s of which without a "
                f"transfer (limit {LATE_S:.0f} s more)"
            )
        if self.first_wrong is None:
            uncrossed = f"; no prompt crosses the prefill chunk of {self.uncrossed_chunk} tokens"
            told = f"KV right, {numbers} (tolerance {self.tolerance:.2g} nats)"
            return told + (uncrossed if self.uncrossed_chunk else "")
        return f"KV WRONG from token {self.first_wrong} on, {numbers} (tolerance {self.tolerance:.2g} nats)"

    def document(self) -> dict[str, Any]:
        """The result as JSON."""
        return {**asdict(self), "ok": self.ok}


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompts:
    """Lengths of the prompts to send, in tokens, and the prefill chunk that none of them crosses, if so."""

    lengths: tuple[int, ...]
    uncrossed_chunk: int | None = None


def prompts_for(page_size: int, chunk: int | None, *, longest_chunk: int, room: int = sys.maxsize) -> Prompts:
    """Lengths at a transfer's edges: at most a page, across pages, across a prefill chunk where there is one.

    A prompt within one page tells lost pages from misplaced heads. room: tokens that a request may have in all.
    """
    lengths = [max(1, page_size - 1), max(40, 3 * page_size + page_size // 2)]
    chunked = bool(chunk and chunk > 0)
    if chunk and chunked and chunk <= longest_chunk:
        lengths.append(chunk + max(5, page_size // 2))
    fitting = tuple(length for length in lengths if length + TOKENS < room) or (lengths[0],)
    return Prompts(lengths=fitting, uncrossed_chunk=chunk if chunked and len(fitting) < 3 else None)


async def prove_parity(
    pairs: Sequence[tuple[Worker, Worker]], *, kv_dtype: str, timeout_s: float, on_cpu: bool = False
) -> tuple[ParityResult, ...]:
    """Compare decode with prefill for every pair, a few at a time. Each prompt has `timeout_s` seconds.

    Further DP groups are compared by the two shorter ones.
    """
    turn = asyncio.Semaphore(AT_ONCE)

    async def measure(prefill: Worker, decode: Worker) -> Measured:
        comparisons = []
        try:
            async with turn:
                prompts = await _prompts(session, prefill, LONGEST_ON_CPU if on_cpu else LONGEST)
                rounds = [(length, 0) for length in prompts.lengths]
                rounds += [(length, group) for group in groups(prefill, decode)[1:] for length in prompts.lengths[:2]]
                for length, group in rounds:
                    async with asyncio.timeout(timeout_s):
                        comparisons.append(await compare(session, prefill, decode, length, group))
                fastest = min(comparisons, key=lambda one: one.seconds)
                slow = fastest.seconds > LATE_S
                alone = await _alone(session, prefill, decode, fastest.prompt_tokens, timeout_s) if slow else 0.0
            return Measured(comparisons=tuple(comparisons), alone_s=alone, uncrossed_chunk=prompts.uncrossed_chunk)
        except TimeoutError:
            return Measured(error=f"no answer within {timeout_s:.0f} s", timed_out=True)
        except ProbeFailed as error:
            return Measured(error=error.what)
        except (KeyError, IndexError, TypeError) as error:
            return Measured(error=f"an answer lacks what a comparison needs: {type(error).__name__} {error}")

    async with aiohttp.ClientSession(timeout=UNTIMED, headers=api_key_header()) as session:
        measured = await asyncio.gather(*(measure(prefill, decode) for prefill, decode in pairs))
    floors: dict[str, float] = {}
    for (prefill, _), each in zip(pairs, measured, strict=True):
        finite = (one.floor for one in each.comparisons if math.isfinite(one.floor))
        floors[prefill.name] = max((floors.get(prefill.name, 0.0), *finite))
    return tuple(
        judge(prefill.name, decode.name, each, tolerance_of(kv_dtype, floors[prefill.name]))
        for (prefill, decode), each in zip(pairs, measured, strict=True)
    )


async def _prompts(session: aiohttp.ClientSession, prefill: Worker, longest_chunk: int) -> Prompts:
    """Prompts for what the server says of its pages and chunks; those of page 1 where it says nothing."""
    try:
        async with asyncio.timeout(INFO_S), session.get(f"{prefill.url}/server_info") as response:
            info = await response.json() if response.status == 200 else {}
    except (aiohttp.ClientError, TimeoutError, ValueError):
        info = {}
    room = min(int(info.get(name) or sys.maxsize) for name in ("context_length", "max_total_num_tokens"))
    return prompts_for(
        int(info.get("page_size") or 1), info.get("chunked_prefill_size"), longest_chunk=longest_chunk, room=room
    )


async def compare(
    session: aiohttp.ClientSession, prefill: Worker, decode: Worker, length: int, group: int = 0
) -> Comparison:
    """Run the two requests for one prompt of `length` tokens. ProbeFailed if a server answers neither."""
    generate = _generate(length)
    prompt = generate["input_ids"]
    begun = time.monotonic()
    _, made = await answers(session, prefill, decode, generate | {"return_logprob": True}, group)
    seconds = time.monotonic() - begun
    again = {
        "input_ids": prompt + made["output_ids"],
        "sampling_params": {"temperature": 0, "max_new_tokens": 1, "ignore_eos": True},
        "return_logprob": True,
        "logprob_start_len": length - 1,
    }
    recomputed, _ = await answers(session, prefill, decode, again, group)
    theirs = _numbers(made["meta_info"]["output_token_logprobs"])
    ours = _numbers(recomputed["meta_info"]["input_token_logprobs"][1:])
    if len(theirs) != len(ours):
        raise ProbeFailed(f"{decode.name} made {len(theirs)} tokens, {prefill.name} recomputed {len(ours)}")
    differences = tuple(abs(a - b) for a, b in zip(theirs, ours, strict=True))
    return Comparison(prompt_tokens=length, seconds=seconds, differences=differences)


def _numbers(entries: Sequence[Sequence[float | None]]) -> list[float]:
    """Log-probabilities as SGLang lists them; its JSON has null for what is no number."""
    return [math.nan if entry[0] is None else entry[0] for entry in entries]


async def _alone(
    session: aiohttp.ClientSession, prefill: Worker, decode: Worker, length: int, timeout_s: float
) -> float:
    """Seconds that both servers need for such an answer where nothing is transferred: they may just be slow."""
    begun = time.monotonic()
    with contextlib.suppress(TimeoutError, ProbeFailed):
        async with asyncio.timeout(timeout_s):
            await answers(session, prefill, decode, _generate(length) | NO_TRANSFER)
    return time.monotonic() - begun


def _generate(length: int) -> dict[str, Any]:
    """A request for tokens after a prompt that is never the same twice: a cached prefix is not transferred."""
    prompt = random.choices(range(*VOCABULARY), k=length)
    return {"input_ids": prompt, "sampling_params": {"temperature": 0, "max_new_tokens": TOKENS, "ignore_eos": True}}


def tolerance_of(kv_dtype: str, floor: float) -> float:
    """The largest difference, in nats, that rounding explains, given the noise floor of the deployment."""
    return min(MOST_TOLERANCE, max(LEAST_TOLERANCE.get(kv_dtype, LEAST_TOLERANCE_ELSE), FLOOR_FACTOR * floor))


def judge(prefill: str, decode: str, measured: Measured, tolerance: float) -> ParityResult:
    """Hold a pair's differences against a tolerance."""
    if measured.error:
        error, timed_out = measured.error, measured.timed_out
        return ParityResult(prefill=prefill, decode=decode, tolerance=tolerance, error=error, timed_out=timed_out)
    differences = [value for one in measured.comparisons for value in one.differences]
    numbers = all(map(math.isfinite, differences))
    firsts = [(one.prompt_tokens, one.first_wrong(tolerance)) for one in measured.comparisons]
    wrong = [(length, first) for length, first in firsts if first is not None]
    return ParityResult(
        prefill=prefill,
        decode=decode,
        prompts=tuple(one.prompt_tokens for one in measured.comparisons),
        tolerance=round(tolerance, 6),
        max_difference=round(max(differences), 6) if numbers else None,
        mean_difference=round(sum(differences) / len(differences), 6) if numbers else None,
        first_wrong=min((first for _, first in wrong), default=None),
        wrong_prompts=tuple(dict.fromkeys(length for length, _ in wrong)),
        fastest_s=round(min(one.seconds for one in measured.comparisons), 3),
        alone_s=round(measured.alone_s, 3),
        uncrossed_chunk=measured.uncrossed_chunk,
    )
