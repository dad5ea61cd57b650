"""One request to a prefill/decode pair, without a router.

The same body goes to both servers with the same bootstrap host, port and room; decode's answer is the pair's, and
prefill's carries what only prefill knows, such as the log-probabilities of the prompt.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp

from disagg_cli.connector import witness
from disagg_cli.errors import ProbeFailed
from disagg_cli.topology.deployment import Worker

NO_TRANSFER = {"bootstrap_host": "2.2.2.2"}
"""With this host a server works alone, and nothing is transferred (SGLang: FAKE_BOOTSTRAP_HOST, for its warm-up)."""


def groups(prefill: Worker, decode: Worker) -> range:
    """One request for each of these meets every DP group of both workers, though not every combination of them."""
    return range(max(prefill.dp, decode.dp))


def both_legs(prefill: Worker, decode: Worker, request: dict[str, Any], group: int = 0) -> list[dict[str, Any]]:
    """What prefill and decode are sent for one request: the same room, which no other request has.

    Prefill's DP groups are chosen by the room, as the router's requests choose them; decode's by name, because it
    would give requests to them in turn (SGLang 0.5.23, managers/data_parallel_controller.py).
    """
    meeting = {
        "bootstrap_host": prefill.host.address,
        "bootstrap_port": prefill.ports.bootstrap,
        "bootstrap_room": witness.new_room(group % prefill.dp, prefill.dp),
    }
    chosen = {"data_parallel_rank": group % decode.dp} if decode.dp > 1 else {}
    return [meeting | request, meeting | chosen | request]


async def answers(
    session: aiohttp.ClientSession, prefill: Worker, decode: Worker, request: dict[str, Any], group: int = 0
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Send one request to both servers and return their whole answers, prefill's first. ProbeFailed as `stream`."""
    bodies = both_legs(prefill, decode, request, group)
    try:
        async with asyncio.TaskGroup() as both:
            legs = [both.create_task(_answer(session, *leg)) for leg in zip((prefill, decode), bodies, strict=True)]
    except ExceptionGroup as group_of:
        raise group_of.exceptions[0] from None
    return legs[0].result(), legs[1].result()


async def stream(
    session: aiohttp.ClientSession, worker: Worker, request: dict[str, Any]
) -> AsyncIterator[dict[str, Any]]:
    """The JSON events of a streamed answer. ProbeFailed for an HTTP error, or an error that comes inside the stream."""
    try:
        async with session.post(f"{worker.url}/generate", json=request) as response:
            await _require_ok(response, worker)
            async for line in response.content:
                data = line.removeprefix(b"data: ").strip()
                if data.startswith(b"{"):
                    event = json.loads(data)
                    if "error" in event:
                        raise ProbeFailed(f"{worker.name} answered an error: {str(event['error'])[:300]}")
                    yield event
    except (aiohttp.ClientError, ValueError) as error:
        raise ProbeFailed(f"{worker.name}: {type(error).__name__}: {error}") from None


async def _answer(session: aiohttp.ClientSession, worker: Worker, request: dict[str, Any]) -> dict[str, Any]:
    try:
        async with session.post(f"{worker.url}/generate", json=request) as response:
            await _require_ok(response, worker)
            answer: dict[str, Any] = await response.json()
            return answer
    except (aiohttp.ClientError, ValueError) as error:
        raise ProbeFailed(f"{worker.name}: {type(error).__name__}: {error}") from None


async def _require_ok(response: aiohttp.ClientResponse, worker: Worker) -> None:
    if response.status != 200:
        raise ProbeFailed(f"{worker.name} answered HTTP {response.status}: {(await response.text())[:300]}")
