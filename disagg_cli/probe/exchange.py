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


def rendezvous(prefill: Worker) -> dict[str, Any]:
    """The fields that bring two servers together, with a room of its own."""
    return {
        "bootstrap_host": prefill.host.address,
        "bootstrap_port": prefill.ports.bootstrap,
        "bootstrap_room": witness.new_room(),
    }


async def answers(
    session: aiohttp.ClientSession, prefill: Worker, decode: Worker, request: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Send one request to both servers and return their whole answers, prefill's first. ProbeFailed as `stream`."""
    body = request | rendezvous(prefill)
    try:
        async with asyncio.TaskGroup() as both:
            legs = [both.create_task(_answer(session, worker, body)) for worker in (prefill, decode)]
    except ExceptionGroup as group:
        raise group.exceptions[0] from None
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
