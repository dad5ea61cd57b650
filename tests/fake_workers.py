"""A server that answers /generate and /v1/completions as it is told: real workers do not fail on demand."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from aiohttp import web

from disagg_cli.topology.deployment import Host, Ports, Role, Share, Worker

Answer = Callable[[web.StreamResponse], Awaitable[None]]

HERE = Host(name="localhost", address="127.0.0.1", gpus=0, local=True)


def event(tokens: int, reason: dict[str, Any] | None = None) -> dict[str, Any]:
    """What SGLang streams after so many tokens."""
    return {"text": "x" * tokens, "meta_info": {"completion_tokens": tokens, "finish_reason": reason}}


LENGTH = {"type": "length", "length": 4}


def says(*events: dict[str, Any], then: Callable[[], Awaitable[None]] | None = None) -> Answer:
    """Stream these events, and then something."""

    async def answer(response: web.StreamResponse) -> None:
        for one in events:
            await response.write(b"data: " + json.dumps(one).encode() + b"\n\n")
        if then:
            await then()
        else:
            await response.write(b"data: [DONE]\n\n")

    return answer


async def hang() -> None:
    """Say nothing more."""
    await asyncio.Event().wait()


good = says(event(1), event(2), event(3), event(4, LENGTH))


class FakeServer:
    """One HTTP server; what it was asked is in `requests`, and `metrics` is what it tells at /metrics, if anything."""

    def __init__(self, answer: Answer | int | str) -> None:
        self.answer = answer
        self.metrics: str | None = None
        self.requests: list[dict[str, Any]] = []
        self.port = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/metrics" and self.metrics is not None:
            return web.Response(text=self.metrics)
        self.requests.append(await request.json() if request.can_read_body else {})
        if isinstance(self.answer, int):
            return web.Response(status=self.answer, text="the reason")
        if isinstance(self.answer, str):
            return web.Response(text=self.answer)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            await self.answer(response)
        return response

    def worker(self, name: str) -> Worker:
        """The server as a worker of a deployment."""
        role: Role = "prefill" if name.startswith("prefill") else "decode"
        ports = Ports(http=self.port, bootstrap=1234, nccl=0, dist_init=0)
        shares = (Share(host=HERE, gpus=()),)
        return Worker(name=name, role=role, pool=0, tp=1, dp=1, dp_attention=False, pp=1, shares=shares, ports=ports)


@contextlib.asynccontextmanager
async def serving(*answers: Answer | int | str) -> AsyncIterator[list[FakeServer]]:
    """One server for each answer."""
    async with contextlib.AsyncExitStack() as stack:
        servers = [FakeServer(answer) for answer in answers]
        for server in servers:
            runner = web.ServerRunner(web.Server(server.handle, handler_cancellation=True))
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            server.port = runner.addresses[0][1]
        yield servers
