"""What a broken server can send below HTTP. Each ends the attempt in a failure, never the run in a traceback."""

import asyncio

import pytest

from disagg_cli.evals.client import Deadlines, Pool, Request

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
EVENT = b'data: {"choices": [{"text": "hi", "finish_reason": null}]}\n\n'
ANSWERS = {
    "nothing": (b"", "cut"),
    "no HTTP": (b"\x16\x03\x01 hello\r\n\r\n", "cut"),
    "half a head": (b"HTTP/1.1 200 O", "cut"),
    "short body": (OK + b"Content-Length: 500\r\n\r\n" + EVENT, "cut"),
    "chunk cut": (CHUNKED + b"ff\r\n" + EVENT, "cut"),
    "bad chunk size": (CHUNKED + b"zz\r\n" + EVENT, "cut"),
    "bad gzip": (OK + b"Content-Encoding: gzip\r\nContent-Length: 5\r\n\r\nhello", "cut"),
    "empty body": (OK + b"Content-Length: 0\r\n\r\n", "cut"),
    "binary": (OK + b"Content-Length: 4\r\n\r\n\xff\xfe\x00\n", "cut"),
    "no space for JSON": (OK + b"Content-Length: 7\r\n\r\ndata:\n\n", "protocol"),
    "long line": (OK + b"X-A: " + b"a" * 100_000 + b"\r\n\r\n", "cut"),
    "redirect to nowhere": (
        b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:9/\r\nContent-Length: 0\r\n\r\n",
        "http",
    ),
    "401": (b"HTTP/1.1 401 No\r\nContent-Length: 2\r\n\r\nno", "http"),
}


async def exchange(answer: bytes):
    """Ask a server that reads the request, writes these bytes, and closes."""

    async def serve(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        await reader.readexactly(length)
        writer.write(answer)
        await writer.drain()
        writer.close()

    seen = []
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        pool = Pool(
            f"http://127.0.0.1:{port}", concurrency=1, deadlines=Deadlines(request_s=10), on_exchange=seen.append
        )
        await pool.run([Request(id="a", rid="r", endpoint="completions", body=b"{}")])
    return seen


@pytest.mark.parametrize(("answer", "kind"), ANSWERS.values(), ids=ANSWERS)
def test_broken_answers(answer, kind):
    (seen,) = asyncio.run(exchange(answer))
    assert seen.failure.kind == kind


def test_a_port_that_nobody_listens_at():
    seen = []

    async def ask():
        pool = Pool("http://127.0.0.1:9", concurrency=1, deadlines=Deadlines(), on_exchange=seen.append)
        await pool.run([Request(id="a", rid="r", endpoint="completions", body=b"{}")])

    asyncio.run(ask())
    assert seen[0].failure.message == "cannot connect to 127.0.0.1:9: Connect call failed ('127.0.0.1', 9)"
