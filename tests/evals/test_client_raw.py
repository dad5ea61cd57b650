"""What a broken server can send below HTTP. Each ends the attempt in a failure, never the run in a traceback."""

import asyncio

import pytest

from disagg_cli.errors import UsageError
from disagg_cli.evals.client import Deadlines, Pool, Request, allow_open_files, api_key_header

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
    "binary": (OK + b"Content-Length: 4\r\n\r\n\xff\xfe\x00\n", "protocol"),
    "JSON, not streamed": (OK + b'Content-Length: 15\r\n\r\n{"choices": []}', "protocol"),
    "an error, not streamed": (OK + b'Content-Length: 15\r\n\r\n{"error": "no"}', "in_stream"),
    "HTTP/1.0": (b"HTTP/1.0 200 OK\r\n\r\n" + EVENT, "cut"),
    "no space for JSON": (OK + b"Content-Length: 7\r\n\r\ndata:\n\n", "protocol"),
    "long line": (OK + b"X-A: " + b"a" * 100_000 + b"\r\n\r\n", "cut"),
    "redirect to nowhere": (
        b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:9/\r\nContent-Length: 0\r\n\r\n",
        "http",
    ),
    "401": (b"HTTP/1.1 401 No\r\nContent-Length: 2\r\n\r\nno", "http"),
}


async def exchange(answer: bytes, scheme: str = "http", *, closes: bool = True, **deadlines: float):
    """Ask a server that reads the request, writes these bytes, and closes."""

    async def serve(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        await reader.readexactly(length)
        writer.write(answer)
        await writer.drain()
        if closes:
            writer.close()

    seen = []
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        pool = Pool(
            f"{scheme}://127.0.0.1:{port}",
            concurrency=1,
            deadlines=Deadlines(**{"request_s": 10, **deadlines}),
            on_exchange=seen.append,
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


WHOLE = (
    CHUNKED
    + b"".join(
        b"%x\r\n%s\r\n" % (len(part), part) for part in (EVENT, EVENT.replace(b"null", b'"stop"'), b"data: [DONE]\n\n")
    )
    + b"0\r\n\r\n"
)


def test_a_whole_answer():
    (seen,) = asyncio.run(exchange(WHOLE))
    assert (seen.failure, seen.text) == (None, "hihi")


def test_redirects_are_not_followed():
    (seen,) = asyncio.run(exchange(ANSWERS["redirect to nowhere"][0]))
    assert seen.failure.message == "HTTP 302 to http://127.0.0.1:9/"


def test_a_body_that_does_not_end_after_done():
    (seen,) = asyncio.run(exchange(WHOLE.removesuffix(b"0\r\n\r\n"), closes=False, idle_s=0.3))
    assert (seen.failure.kind, seen.failure.message) == ("idle", "the body did not end after [DONE]")


def test_a_server_that_takes_no_connection(monkeypatch):
    """It never answers the greeting of TLS, as a stopped one never takes a connection off its queue."""
    monkeypatch.setattr("disagg_cli.evals.client._CONNECT_S", 0.3)
    (seen,) = asyncio.run(exchange(b"", "https"))
    assert (seen.failure.kind, seen.failure.message) == ("connect", "no connection within 0.3 s")


def asked(count: int, on_exchange) -> Pool:
    """A pool with one request in flight, run to its end."""

    async def serve(reader, writer):
        while True:
            await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(2)
            writer.write(WHOLE)

    async def ask():
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            pool = Pool(url, concurrency=1, deadlines=Deadlines(), on_exchange=lambda seen: on_exchange(pool, seen))
            await pool.run(Request(id=str(n), rid="r", endpoint="completions", body=b"{}") for n in range(count))

    asyncio.run(ask())


def test_the_next_request_leaves_before_an_answer_is_scored():
    in_flight = []
    asked(3, lambda pool, _seen: in_flight.append(pool.in_flight))
    assert in_flight == [1, 1, 0]


def test_an_error_in_scoring_ends_the_run():
    seen = []

    def fails(_pool, exchange):
        seen.append(exchange)
        raise ValueError("disk full")

    with pytest.raises(ValueError, match="disk full"):
        asked(50, fails)
    assert len(seen) == 1


def test_too_few_open_files(monkeypatch):
    monkeypatch.setattr("resource.getrlimit", lambda _what: (256, 1024))
    allow_open_files(100)
    with pytest.raises(UsageError, match=r"2000 requests in flight need 2064 open files; the system allows 1024"):
        allow_open_files(2000)


def test_a_key_that_no_header_can_carry(monkeypatch):
    monkeypatch.setenv("DISAGG_API_KEY", " k\n")
    assert api_key_header() == {"Authorization": "Bearer k"}
    monkeypatch.setenv("DISAGG_API_KEY", "a\nb")
    with pytest.raises(UsageError, match="DISAGG_API_KEY"):
        api_key_header()
