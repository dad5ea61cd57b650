"""What waits in the four queues of SGLang's PD path: where a request that does not come back is stuck."""

import asyncio
import re

import aiohttp

from disagg_cli.http import UNTIMED
from disagg_cli.topology.deployment import Worker

QUEUES = (
    "sglang:num_prefill_bootstrap_queue_reqs",
    "sglang:num_prefill_inflight_queue_reqs",
    "sglang:num_decode_prealloc_queue_reqs",
    "sglang:num_decode_transfer_queue_reqs",
)
"""Gauges of SGLang 0.5.11 and later, with --enable-metrics. Nothing may wait in them once no request is under way."""

ANSWER_S = 5.0
_GAUGE = re.compile(r"^sglang:num_(\w+)_queue_reqs(?:\{[^}]*\})? ([0-9.eE+-]+)$", re.MULTILINE)


async def waiting(*workers: Worker) -> dict[str, float]:
    """Worker and queue -> requests in it, those of all ranks together. A worker that tells nothing is left out."""
    async with aiohttp.ClientSession(timeout=UNTIMED) as session:
        texts = await asyncio.gather(*(_metrics(session, worker) for worker in workers))
    found: dict[str, float] = {}
    for worker, text in zip(workers, texts, strict=True):
        for queue, count in _GAUGE.findall(text):
            if f"sglang:num_{queue}_queue_reqs" in QUEUES:
                name = f"{worker.name} {queue.partition('_')[2]}"
                found[name] = found.get(name, 0.0) + float(count)
    return found


async def _metrics(session: aiohttp.ClientSession, worker: Worker) -> str:
    try:
        async with asyncio.timeout(ANSWER_S), session.get(f"{worker.url}/metrics") as response:
            return await response.text() if response.status == 200 else ""
    except (aiohttp.ClientError, TimeoutError, ValueError):
        return ""
