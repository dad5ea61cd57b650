"""One request through the router."""

import pytest
from aiohttp import web
from fake_workers import hang, says, serving

from disagg_cli.errors import ProbeFailed
from disagg_cli.probe import router
from disagg_cli.probe.router import prove_router


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(router, "PAUSE_S", 0.01)


def body(text):
    """An answer with exactly this body."""

    async def answer(response: web.StreamResponse) -> None:
        await response.write(text.encode())

    return answer


COMPLETION = body('{"usage": {"completion_tokens": 4}}')


async def proof(answer, timeout_s=10.0):
    async with serving(answer) as (server,):
        return await prove_router(f"http://127.0.0.1:{server.port}", "demo", timeout_s=timeout_s)


async def test_an_answer():
    async with serving(COMPLETION) as (server,):
        result = await prove_router(f"http://127.0.0.1:{server.port}", "demo", timeout_s=10)
    assert (result["url"], result["tokens"]) == (f"http://127.0.0.1:{server.port}", 4)
    assert server.requests[0]["model"] == "demo"


async def test_it_is_asked_until_it_knows_its_workers():
    async with serving(503) as (server,):

        class Later:
            """503 twice, then an answer."""

            @property
            def answer(self):
                return 503 if len(server.requests) < 3 else COMPLETION

        server.__class__ = type("LateServer", (type(server),), {"answer": Later.answer})
        result = await prove_router(f"http://127.0.0.1:{server.port}", "demo", timeout_s=10)
    assert (len(server.requests), result["tokens"]) == (3, 4)


@pytest.mark.parametrize(
    ("answer", "refusal"),
    [
        (503, "HTTP 503: the reason"),
        (body("not JSON"), "not JSON"),
        (body("{}"), "HTTP 200: {}"),
        (body('{"usage": {"completion_tokens": 0}}'), "completion_tokens"),
    ],
)
async def test_no_answer_in_time(answer, refusal):
    with pytest.raises(ProbeFailed, match="answered no request within 0 s") as caught:
        await proof(answer, timeout_s=0.2)
    assert refusal in caught.value.what or "Expecting value" in caught.value.what


async def test_it_hangs():
    with pytest.raises(ProbeFailed, match="answered no request within 0 s"):
        await proof(says(then=hang), timeout_s=0.2)


async def test_it_does_not_listen():
    with pytest.raises(ProbeFailed, match=r"the router at http://127\.0\.0\.1:1 answered no request within 0 s"):
        await prove_router("http://127.0.0.1:1", "demo", timeout_s=0.2)


async def test_it_dies_while_it_answers():
    async def dies(response):
        await response.write(b"{")
        response._req.transport.abort()

    with pytest.raises(ProbeFailed, match="answered no request"):
        await proof(dies, timeout_s=0.2)
