"""One request through the router: what clients will do, once every pair behind it is proven."""

import asyncio
import time
from typing import Any

import aiohttp

from disagg_cli.api_key import api_key_header
from disagg_cli.errors import ProbeFailed
from disagg_cli.http import UNTIMED

PAUSE_S = 0.3


async def prove_router(url: str, model: str, *, timeout_s: float) -> dict[str, Any]:
    """Ask until the router answers with tokens; it says 503 until it has seen its workers.

    ProbeFailed after `timeout_s` seconds, with the last refusal.
    """
    begun = time.monotonic()
    refusal = "it did not listen"
    request = {"model": model, "prompt": "One, two, three,", "max_tokens": 4, "temperature": 0, "ignore_eos": True}
    try:
        async with (
            asyncio.timeout(timeout_s),
            aiohttp.ClientSession(timeout=UNTIMED, headers=api_key_header()) as session,
        ):
            while True:
                try:
                    async with session.post(f"{url}/v1/completions", json=request) as response:
                        refusal = f"HTTP {response.status}: {(await response.text())[:200]}"
                        if response.status == 200 and (tokens := _tokens(await response.json(content_type=None))) > 1:
                            return {"url": url, "tokens": tokens, "total_s": round(time.monotonic() - begun, 3)}
                except (aiohttp.ClientError, OSError, ValueError) as error:
                    refusal = str(error)
                await asyncio.sleep(PAUSE_S)
    except TimeoutError:
        raise ProbeFailed(f"the router at {url} answered no request within {timeout_s:.0f} s: {refusal}") from None


def _tokens(answer: Any) -> int:
    """How many tokens an answer of /v1/completions has; 0 for what is no such answer."""
    try:
        return int(answer["usage"]["completion_tokens"])
    except (KeyError, TypeError):
        return 0
