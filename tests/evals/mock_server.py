"""A server that answers as SGLang does, streaming or not, and fails in every way that a PD deployment can.

`behave` maps a question (a part of its text) to one of the coroutines below; questions not named are answered right.
"""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Behaviour = Callable[[web.Request, dict[str, Any], str], Awaitable[web.StreamResponse]]


def event(text: str, finish: str | None = None, **more: object) -> bytes:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish, "matched_stop": None}
    return f"data: {json.dumps({'id': 'x', 'object': 'text_completion', 'choices': [choice], **more})}\n\n".encode()


def usage(prompt: int, completion: int) -> bytes:
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return f"data: {json.dumps({'id': 'x', 'choices': [], 'usage': counts})}\n\n".encode()


async def opened(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    return response


def says(text: str, finish: str = "stop", prompt_tokens: int | None = None, pause: float = 0.0) -> Behaviour:
    async def answer(request: web.Request, body: dict[str, Any], _right: str) -> web.StreamResponse:
        response = await opened(request)
        pieces = [text[i : i + 4] for i in range(0, len(text), 4)]
        for piece in pieces:
            await response.write(event(piece))
            await asyncio.sleep(pause)
        await response.write(event("", finish))
        count = len(json.dumps(body)) // 4 if prompt_tokens is None else prompt_tokens
        await response.write(usage(count, len(pieces)) + b"data: [DONE]\n\n")
        return response

    return answer


async def right(request: web.Request, body: dict[str, Any], answer: str) -> web.StreamResponse:
    return await says(f" {answer}")(request, body, answer)


async def hangs(_request: web.Request, _body: dict[str, Any], _right: str) -> web.StreamResponse:
    await asyncio.sleep(3600)
    raise AssertionError


async def stalls(request: web.Request, _body: dict[str, Any], _right: str) -> web.StreamResponse:
    response = await opened(request)
    await response.write(event(" half an") + event(" answer"))
    await asyncio.sleep(3600)
    return response


async def drips(request: web.Request, _body: dict[str, Any], _right: str) -> web.StreamResponse:
    response = await opened(request)
    while True:
        await response.write(event(" 1"))
        await asyncio.sleep(0.02)


async def errors_in_stream(request: web.Request, _body: dict[str, Any], _right: str) -> web.StreamResponse:
    response = await opened(request)
    message = (
        "Decode transfer failed for request rank=0 decode_req.req.bootstrap_room=77 with exception KVTransferError"
    )
    error = {"error": {"message": message, "type": "InternalServerError", "code": 500}}
    await response.write(event(" half") + f"data: {json.dumps(error)}\n\ndata: [DONE]\n\n".encode())
    return response


async def cuts(request: web.Request, _body: dict[str, Any], _right: str) -> web.StreamResponse:
    response = await opened(request)
    await response.write(event(" half"))
    assert request.transport
    request.transport.abort()
    return response


async def forgets_done(request: web.Request, _body: dict[str, Any], _right: str) -> web.StreamResponse:
    response = await opened(request)
    await response.write(event(" #### 1"))
    return response


async def talks_garbage(request: web.Request, _body: dict[str, Any], _right: str) -> web.StreamResponse:
    response = await opened(request)
    await response.write(b"data: {not json\n\ndata: [DONE]\n\n")
    return response


async def unavailable(_request: web.Request, _body: dict[str, Any], _right: str) -> web.StreamResponse:
    return web.json_response({"error": "No available servers"}, status=503)


async def chats(request: web.Request, _body: dict[str, Any], right: str) -> web.StreamResponse:
    """Role first, then reasoning, then the answer."""
    response = await opened(request)
    for delta in ({"role": "assistant", "content": ""}, {"reasoning_content": "Is it 7?"}, {"content": right}):
        choice = {"index": 0, "delta": delta, "finish_reason": None}
        await response.write(f"data: {json.dumps({'choices': [choice]})}\n\n".encode())
    last = {"index": 0, "delta": {"content": None}, "finish_reason": "stop", "matched_stop": 151645}
    await response.write(f"data: {json.dumps({'choices': [last]})}\n\n".encode() + usage(40, 9) + b"data: [DONE]\n\n")
    return response


async def generates(request: web.Request, _body: dict[str, Any], right: str) -> web.StreamResponse:
    """The whole text so far in every event."""
    response = await opened(request)
    middle = len(right) // 2
    for text, finish in ((right[:middle], None), (right, {"type": "stop", "matched": 9})):
        meta = {"prompt_tokens": 900, "completion_tokens": 5, "cached_tokens": 800, "dp_rank": len(right) % 2}
        event = {"text": text, "meta_info": meta | {"finish_reason": finish, "num_retractions": 1}}
        await response.write(f"data: {json.dumps(event)}\n\n".encode())
    await response.write(b"data: [DONE]\n\n")
    return response


def question_of(body: dict[str, Any]) -> str:
    """The open question of a request's body."""
    text = body.get("prompt") or body.get("text") or body["messages"][-1]["content"]
    return text.rpartition("Question: ")[2].removesuffix("\nAnswer:").partition("\n\n")[0]


@dataclass
class MockServer:
    """`golds`: the right worked answer for each question. `seen`: bodies of all requests."""

    golds: Mapping[str, str]
    behave: dict[str, Behaviour] = field(default_factory=dict)
    default: Behaviour = right
    seen: list[dict[str, Any]] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0
    metrics: Callable[["MockServer"], str] | None = None
    url: str = ""

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_post("/generate", self._complete)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/server_info", self._info)
        app.router.add_get("/metrics", self._metrics)
        return app

    async def _info(self, _request: web.Request) -> web.Response:
        return web.json_response({"version": "0.5.23", "disaggregation_mode": "decode", "tp_size": 1, "much": "more"})

    async def _metrics(self, _request: web.Request) -> web.Response:
        return web.Response(text=self.metrics(self)) if self.metrics else web.Response(status=404)

    async def _models(self, _request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "mock-model"}]})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.seen.append(body)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            asked = question_of(body)
            chosen = next((b for part, b in self.behave.items() if part in asked), self.default)
            return await chosen(request, body, self.golds.get(asked, "#### 0"))
        finally:
            self.in_flight -= 1


@asynccontextmanager
async def serving(server: MockServer) -> Any:
    """Serve in the running loop."""
    runner = web.AppRunner(server.app(), shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()


@contextmanager
def serving_in_thread(server: MockServer) -> Iterator[MockServer]:
    """Serve beside code that runs a loop of its own."""
    started = threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def run() -> None:
        async with serving(server):
            started.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()), daemon=True)
    thread.start()
    assert started.wait(10)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
