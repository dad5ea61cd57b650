"""Readiness is a transfer: every prefill/decode pair is driven directly, without a router, with a prompt of its own.

Decode answers only once the KV cache of the whole prompt has come from prefill over NIXL, and needs it for every token
after the first. Health checks stay green when that transfer is broken (SGLang 0.5.6 to 0.5.23).
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import aiohttp

from disagg_cli.api_key import api_key_header
from disagg_cli.http import UNTIMED
from disagg_cli.probe.exchange import both_legs, groups, stream
from disagg_cli.probe.queues import waiting
from disagg_cli.topology.deployment import Worker

TOKENS = 4
ENDINGS = ("length", "stop")
AT_ONCE = 4
"""Pairs driven side by side. The first transfer of a pair sets up connections and descriptors on both sides."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PairResult:
    """One pair's proof. Seconds; error says what came instead of an answer, and is None for a pair that moved KV.

    There is one request for each DP group, and a failure is of the first that failed; requests: how many were sent.
    prefill_done: whether prefill answered its own leg, which it does once all its ranks have sent everything.
    room: the bootstrap room of the request, by which both logs can be searched. timed_out: whether nothing was refused.
    queues: what waited in both workers' PD queues when the time was over.
    """

    prefill: str
    decode: str
    first_token_s: float | None
    total_s: float
    tokens: int
    error: str | None
    prefill_done: bool = False
    room: int = 0
    timed_out: bool = False
    requests: int = 1
    queues: Mapping[str, float] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether the pair answered with tokens that need the transferred KV."""
        return self.error is None

    def document(self) -> dict[str, Any]:
        """The result as JSON."""
        return {**asdict(self), "ok": self.ok}


async def prove_pairs(
    pairs: Sequence[tuple[Worker, Worker]], *, timeout_s: float, done: Callable[[PairResult], None]
) -> tuple[PairResult, ...]:
    """Drive every pair, a few at a time; `done` hears of each as it ends. Each pair has `timeout_s` seconds."""
    turn = asyncio.Semaphore(AT_ONCE)

    async def prove(prefill: Worker, decode: Worker) -> PairResult:
        async with turn:
            result = await prove_pair(session, prefill, decode, timeout_s=timeout_s)
        done(result)
        return result

    async with aiohttp.ClientSession(timeout=UNTIMED, headers=api_key_header()) as session:
        return tuple(await asyncio.gather(*(prove(prefill, decode) for prefill, decode in pairs)))


async def prove_pair(
    session: aiohttp.ClientSession, prefill: Worker, decode: Worker, *, timeout_s: float
) -> PairResult:
    """Move KV from one prefill to one decode, between all their DP groups. Each request has `timeout_s` seconds."""
    results: list[PairResult] = []
    for group in groups(prefill, decode):
        results.append(await _move(session, prefill, decode, group, timeout_s))
        if not results[-1].ok:
            break
    told = results[0] if results[-1].ok else results[-1]
    return replace(told, requests=len(results), total_s=round(sum(one.total_s for one in results), 3))


async def _move(
    session: aiohttp.ClientSession, prefill: Worker, decode: Worker, group: int, timeout_s: float
) -> PairResult:
    """One request with a prompt that no other has sent."""
    begun = time.monotonic()
    seen, queues, timed_out = _Seen(), dict[str, float](), False
    for_prefill, for_decode = both_legs(prefill, decode, _request(prefill, decode), group)
    try:
        async with asyncio.TaskGroup() as both:
            legs = [
                both.create_task(_drain(session, prefill, for_prefill, seen)),
                both.create_task(_follow(session, decode, for_decode, seen)),
            ]
            _, unanswered = await asyncio.wait(legs, timeout=timeout_s)
            if timed_out := bool(unanswered):
                queues = await waiting(prefill, decode)  # before both hear that nobody waits any more
            for leg in unanswered:
                leg.cancel()
        error = _fault(seen.last)
    except ExceptionGroup as group_of:
        timed_out = False
        error = "; ".join(str(cause) or type(cause).__name__ for cause in group_of.exceptions)
    if timed_out:
        error = f"{f'only {_tokens(seen.last)} token(s)' if seen.first else 'no answer'} within {timeout_s:.0f} s"
    return PairResult(
        prefill=prefill.name,
        decode=decode.name,
        first_token_s=round(seen.first - begun, 3) if seen.first else None,
        total_s=round(time.monotonic() - begun, 3),
        tokens=_tokens(seen.last),
        error=error,
        prefill_done=seen.prefill_done,
        room=for_decode["bootstrap_room"],
        timed_out=timed_out,
        queues=queues,
    )


@dataclass(slots=True)
class _Seen:
    """What has come so far: from decode, and whether prefill's leg has ended well."""

    prefill_done: bool = False
    first: float | None = None
    last: dict[str, Any] = field(default_factory=dict)


def _request(prefill: Worker, decode: Worker) -> dict[str, Any]:
    nonce = secrets.token_hex(4)
    return {
        "text": f"Proof {nonce} from {prefill.name} to {decode.name}: one two three four five six seven eight nine ten",
        "sampling_params": {"temperature": 0, "max_new_tokens": TOKENS, "ignore_eos": True},
        "stream": True,
    }


async def _drain(session: aiohttp.ClientSession, worker: Worker, request: dict[str, Any], seen: _Seen) -> None:
    last: dict[str, Any] = {}
    async for last in stream(session, worker, request):  # noqa: B007 - the last event says how the leg ended
        pass
    seen.prefill_done = _ending(last) in ENDINGS


async def _follow(session: aiohttp.ClientSession, worker: Worker, request: dict[str, Any], seen: _Seen) -> None:
    async for event in stream(session, worker, request):
        seen.first = seen.first or time.monotonic()
        seen.last = event


def _tokens(event: dict[str, Any]) -> int:
    return int(event.get("meta_info", {}).get("completion_tokens") or 0)


def _ending(event: dict[str, Any]) -> str | None:
    reason = event.get("meta_info", {}).get("finish_reason") or {}
    return reason.get("type")


def _fault(last: dict[str, Any]) -> str | None:
    """What is wrong with an answer that came to its end, if anything."""
    if _ending(last) not in ENDINGS:
        return f"decode ended with {last.get('meta_info', {}).get('finish_reason') or 'no finish reason'}"
    if _tokens(last) < TOKENS:
        return f"decode made {_tokens(last)} of {TOKENS} tokens"
    return None
