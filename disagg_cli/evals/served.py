"""What servers tell about themselves: the model's name, versions, and Prometheus counters before and after a run."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from disagg_cli.errors import EvalUndecided
from disagg_cli.evals.client import api_key_header

_TIMEOUT = aiohttp.ClientTimeout(total=10)
# The four queues of SGLang's PD path (0.5.11 and later, with --enable-metrics). After a run nothing may wait in them:
# what does has leaked a bootstrap room.
QUEUES = (
    "sglang:num_prefill_bootstrap_queue_reqs",
    "sglang:num_prefill_inflight_queue_reqs",
    "sglang:num_decode_prealloc_queue_reqs",
    "sglang:num_decode_transfer_queue_reqs",
)
_COUNTERS = (
    "sglang:num_bootstrap_failed_reqs_total",
    "sglang:num_transfer_failed_reqs_total",
    "sglang:num_prefill_retries_total",
    "sglang:num_aborted_requests_total",
    "sglang:num_requests_total",
    "sglang:prompt_tokens_total",
    "sglang:generation_tokens_total",
    "sglang:cached_tokens_total",
    "sglang:kv_transfer_total_mb_sum",
    "sglang:kv_transfer_latency_ms_sum",
    "sglang:kv_transfer_latency_ms_count",
)
_LINE = re.compile(r"^(sglang:[A-Za-z0-9_]+)(?:\{[^}]*\})? ([0-9.eE+-]+|NaN)$", re.MULTILINE)
GRACE_S = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Counters:
    """What a run did to one worker's counters, and what its PD queues held in the end. Empty: it tells no metrics."""

    worker: str
    deltas: Mapping[str, float]
    queues: Mapping[str, float]

    @property
    def leaked(self) -> dict[str, float]:
        """Queues that were not empty within the time of grace."""
        return {name: count for name, count in self.queues.items() if count}


async def served_model(url: str) -> str:
    """The name of the model that the server serves; `default`, which SGLang takes for any, where it does not say.

    EvalUndecided where nothing answers at all.
    """
    try:
        async with _session() as session, session.get(url + "/v1/models") as response:
            listing = await response.json(content_type=None)
            return str(listing["data"][0]["id"])
    except aiohttp.ClientConnectorError as error:
        raise EvalUndecided(
            f"nothing answers: {error}", where=url, fix="start the deployment, or give its --url"
        ) from None
    except (aiohttp.ClientError, TimeoutError, ValueError, KeyError, IndexError, TypeError):
        return "default"


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(timeout=_TIMEOUT, headers=api_key_header())


async def versions(urls: Sequence[str]) -> dict[str, dict[str, Any]]:
    """SGLang's version and role of each server that answers /server_info."""
    found = await asyncio.gather(*(_info(url) for url in urls))
    return {url: info for url, info in zip(urls, found, strict=True) if info}


async def _info(url: str) -> dict[str, Any]:
    try:
        async with _session() as session, session.get(url + "/server_info") as response:
            info = await response.json(content_type=None)
            return {
                name: info[name] for name in ("version", "disaggregation_mode", "tp_size", "dp_size") if name in info
            }
    except (aiohttp.ClientError, TimeoutError, ValueError, TypeError):
        return {}


async def scrape(urls: Sequence[str]) -> list[dict[str, float]]:
    """Each worker's metrics, summed over labels; empty for one that tells none."""
    return list(await asyncio.gather(*(_metrics(url) for url in urls)))


async def _metrics(url: str) -> dict[str, float]:
    try:
        async with _session() as session, session.get(url + "/metrics") as response:
            return parse_metrics(await response.text()) if response.status == 200 else {}
    except (aiohttp.ClientError, TimeoutError, ValueError):
        return {}


def parse_metrics(text: str) -> dict[str, float]:
    """Prometheus text to name -> value, summed over labels. Only the names that we use are kept."""
    totals: dict[str, float] = {}
    for name, value in _LINE.findall(text):
        if name in QUEUES or name in _COUNTERS:
            totals[name] = totals.get(name, 0.0) + float(value)
    return totals


async def counters_since(urls: Sequence[str], before: Sequence[Mapping[str, float]]) -> tuple[Counters, ...]:
    """Deltas since `before`, once the queues are empty or the time of grace is over."""
    if not any(before):
        return ()
    deadline = asyncio.get_running_loop().time() + GRACE_S
    after = await scrape(urls)
    while _waiting(after) and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(0.5)
        after = await scrape(urls)
    return tuple(_compared(url, *pair) for url, *pair in zip(urls, before, after, strict=True))


def _waiting(scraped: Sequence[Mapping[str, float]]) -> bool:
    return any(metrics.get(name) for metrics in scraped for name in QUEUES)


def _compared(url: str, before: Mapping[str, float], after: Mapping[str, float]) -> Counters:
    deltas = {name: after[name] - before.get(name, 0.0) for name in _COUNTERS if name in after}
    return Counters(worker=url, deltas=deltas, queues={name: after[name] for name in QUEUES if name in after})
