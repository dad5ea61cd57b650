"""A bounded pool of streaming requests, each with its deadlines.

As many workers as requests in flight; a worker takes the next request when its last one ended, so the time a request
waits for its turn is not in its figures. Nothing is tried again: in PD serving a second attempt gets a new bootstrap
room and would hide the fault. Every attempt ends in an `Exchange`, whatever happened, and when its deadlines say.
"""

import asyncio
import gc
import math
import resource
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import aiohttp
from yarl import URL

from disagg_cli.api_key import api_key_header
from disagg_cli.errors import UsageError
from disagg_cli.evals.events import REPLIES, Failure, Reply, failure
from disagg_cli.evals.protocols import PATHS, Endpoint
from disagg_cli.evals.timing import Timing, measure

# Below uvicorn's 5 s: a connection that the server is about to close must not be used again.
_KEEPALIVE_S = 2.0
_HEADERS = {"Content-Type": "application/json", "Accept": "text/event-stream"}
_ERROR_BODY = 4096
# For TCP and TLS together. A server that is stopped, or one behind a firewall, takes no connection and refuses none.
_CONNECT_S = 30.0
_SPARE_FILES = 64
_ABORTED = ("abort", "error")


@dataclass(frozen=True, kw_only=True, slots=True)
class Deadlines:
    """Seconds. The request's is above SGLang's own 300 s for bootstrap and transfer, so that its message arrives first.

    `first_token_s`: until the first text. `idle_s`: between two pieces of text. `run_s`: the whole run; None: as long
    as all requests could take, at most two hours.
    """

    request_s: float = 420.0
    first_token_s: float = 420.0
    idle_s: float = 60.0
    run_s: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One request. `rid` is its own in every attempt, and both workers' logs name it."""

    id: str
    rid: str
    endpoint: Endpoint
    body: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Exchange:
    """What one attempt brought. `failure` is None only for a whole answer."""

    request: Request
    text: str
    pieces: list[int]
    reasoning_characters: int
    server: dict[str, int]
    finish_reason: str | None
    matched_stop: object
    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None
    bytes_received: int
    started_at: float
    timing: Timing
    failure: Failure | None


class Watch:
    """Cancels the task that made it when a deadline passes, and says which one in `expired`.

    One timer for a request, set again only when it goes off: an arriving piece of text just notes the time.
    """

    __slots__ = ("_deadlines", "_loop", "_task", "_timer", "expired", "last", "start")

    def __init__(self, deadlines: Deadlines) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._deadlines = deadlines
        self.start = self._loop.time()
        self.last: float | None = None
        self.expired: str | None = None
        self._timer = self._loop.call_at(self._due()[0], self._check)

    def expire(self, kind: str) -> None:
        """End the attempt now, for this reason."""
        if self.expired is None and self._task is not None:
            self.expired = kind
            self._task.cancel()

    def close(self) -> None:
        """The attempt ended by itself."""
        self._timer.cancel()

    def _due(self) -> tuple[float, str]:
        limits = self._deadlines
        if self.last is None:
            waiting = (self.start + limits.first_token_s, "first_token")
        else:
            waiting = (self.last + limits.idle_s, "idle")
        return min(waiting, (self.start + limits.request_s, "request"))

    def _check(self) -> None:
        due, kind = self._due()
        if self._loop.time() >= due:
            self.expire(kind)
        else:
            self._timer = self._loop.call_at(due, self._check)


class Pool:
    """Sends requests to one server, `concurrency` at a time, and hands every exchange to `on_exchange`."""

    def __init__(
        self,
        url: str,
        *,
        concurrency: int,
        deadlines: Deadlines,
        on_exchange: Callable[[Exchange], None],
        stream: bool = True,
    ) -> None:
        self._targets = {endpoint: URL(url.rstrip("/") + path, encoded=True) for endpoint, path in PATHS.items()}
        self._concurrency = concurrency
        self._deadlines = deadlines if stream else replace(deadlines, first_token_s=math.inf)
        self._on_exchange = on_exchange
        self._stream = stream
        self._watches: set[Watch] = set()
        self._trouble: Exception | None = None
        self.stopped: str | None = None

    @property
    def in_flight(self) -> int:
        """Requests that wait for their answer's end."""
        return len(self._watches)

    async def run(self, requests: Iterable[Request]) -> None:
        """Send all requests. Returns when each has ended or, after `stop`, was left out.

        What `on_exchange` raises ends the run, and is raised.
        """
        queue = iter(requests)
        timer = None
        if self._deadlines.run_s is not None:
            timer = asyncio.get_running_loop().call_later(self._deadlines.run_s, self.stop, "run")
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_S)
        headers = _HEADERS | api_key_header()
        timeout = aiohttp.ClientTimeout(total=None, connect=None, sock_connect=_CONNECT_S, sock_read=None)
        gc.freeze()  # the collector would walk all imported modules again and again while answers come in
        try:
            async with (
                aiohttp.ClientSession(
                    connector=connector, timeout=timeout, cookie_jar=aiohttp.DummyCookieJar(), headers=headers
                ) as session,
                asyncio.TaskGroup() as workers,
            ):
                for _ in range(self._concurrency):
                    workers.create_task(self._work(session, queue))
        except* Exception as group:  # noqa: BLE001 - raised again, without its group
            raise group.exceptions[0] from None
        finally:
            gc.unfreeze()
            if timer:
                timer.cancel()
        if self._trouble:
            raise self._trouble

    def stop(self, kind: str, grace_s: float = 0.0) -> None:
        """Start nothing more, and end what is still in flight after the time of grace, with this kind of failure."""
        self.stopped = self.stopped or kind
        asyncio.get_running_loop().call_later(grace_s, self._expire, kind)

    def _expire(self, kind: str) -> None:
        for watch in tuple(self._watches):
            watch.expire(kind)

    async def _work(self, session: aiohttp.ClientSession, queue: Iterable[Request]) -> None:
        loop = asyncio.get_running_loop()
        for request in queue:
            exchange = await self._attempt(session, request)
            # Once the next requests have left: no server waits while an answer is scored.
            loop.call_soon(self._hand_over, exchange)
            if self.stopped:
                return

    def _hand_over(self, exchange: Exchange) -> None:
        if self._trouble:
            return
        try:
            self._on_exchange(exchange)
        except Exception as error:  # noqa: BLE001 - raised again by `run`
            self._trouble = error
            self.stop("stopped")

    async def _attempt(self, session: aiohttp.ClientSession, request: Request) -> Exchange:
        watch = Watch(self._deadlines)
        self._watches.add(watch)
        started_at = time.time()
        read = _Read(watch=watch, reply=REPLIES[request.endpoint]())
        try:
            trouble = await self._post(session, request, read)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if watch.expired is None or (task and task.uncancel()):
                raise
            trouble = _overdue(watch.expired, self._deadlines, read.reply)
        except aiohttp.ConnectionTimeoutError:
            trouble = failure("connect", f"no connection within {_CONNECT_S:g} s")
        except aiohttp.ClientConnectorError as error:
            trouble = failure("connect", f"cannot connect to {error.host}:{error.port}: {error.strerror or error}")
        except (aiohttp.ClientError, OSError) as error:
            trouble = failure("cut", f"the connection broke: {type(error).__name__}: {error}")
        finally:
            watch.close()
            self._watches.discard(watch)
        return _exchange(request, read, trouble, started_at, asyncio.get_running_loop().time())

    async def _post(self, session: aiohttp.ClientSession, request: Request, read: "_Read") -> Failure | None:
        url = self._targets[request.endpoint]
        async with session.post(url, data=request.body, allow_redirects=False) as response:
            if response.status != 200:
                body = await response.content.read(_ERROR_BODY)
                where = response.headers.get("Location")
                return failure("http", _message(response.status, where, body), response.status)
            if self._stream:
                loop = asyncio.get_running_loop()
                async for data in response.content.iter_any():
                    read.take(data, loop.time())
                    if read.reply.trouble:
                        break
                else:
                    read.reply.end()
            else:
                body = await response.read()
                read.received = len(body)
                read.reply.whole(body)
        return _complaint(read.reply)


class _Read:
    """What has arrived so far: kept outside the attempt's coroutine, because a deadline may end that at any point."""

    __slots__ = ("arrivals", "received", "reply", "watch")

    def __init__(self, *, watch: Watch, reply: Reply) -> None:
        self.watch = watch
        self.reply = reply
        self.received = 0
        self.arrivals: list[tuple[float, int]] = []

    def take(self, data: bytes, now: float) -> None:
        self.received += len(data)
        pieces = self.reply.feed(data)
        if pieces:
            self.watch.last = now
            self.arrivals.append((now, pieces))


def _exchange(request: Request, read: _Read, trouble: Failure | None, started_at: float, end: float) -> Exchange:
    reply = read.reply
    return Exchange(
        request=request,
        text=reply.text,
        pieces=reply.pieces,
        reasoning_characters=reply.reasoning_characters,
        server=reply.server,
        finish_reason=reply.finish_reason,
        matched_stop=reply.matched_stop,
        prompt_tokens=reply.prompt_tokens,
        completion_tokens=reply.completion_tokens,
        cached_tokens=reply.cached_tokens,
        bytes_received=read.received,
        started_at=started_at,
        timing=measure(read.watch.start, read.arrivals, end, reply.completion_tokens),
        failure=trouble,
    )


def _complaint(reply: Reply) -> Failure | None:
    """Why a body that ended by itself is no answer; None where it is one."""
    if reply.trouble:
        return reply.trouble
    if reply.finish_reason in _ABORTED:
        return failure(
            "abort", f"the server aborted the request (finish_reason {reply.finish_reason}): {reply.text[:200]}"
        )
    if not reply.done or reply.finish_reason is None:
        missing = "finish_reason" if reply.done else "[DONE]"
        return failure("cut", f"the body ended without {missing}")
    if reply.prompt_tokens is not None and reply.prompt_tokens <= 1:
        # sglang issue 30233: prefill aborted, and decode answered a prompt that it never got.
        return failure("prompt_tokens", f"the server counted {reply.prompt_tokens} prompt tokens")
    return None


def _overdue(kind: str, limits: Deadlines, reply: Reply) -> Failure:
    if reply.done and kind != "stopped":
        return failure(kind, "the body did not end after [DONE]")
    said = {
        "first_token": f"no text within {limits.first_token_s:g} s",
        "idle": f"no further text for {limits.idle_s:g} s",
        "request": f"not finished within {limits.request_s:g} s",
        "run": f"still running at the run's deadline of {limits.run_s or 0:g} s",
    }
    return failure(kind, said.get(kind, "the run was stopped before the answer came"))


def _message(status: int, where: str | None, body: bytes) -> str:
    head = f"HTTP {status} to {where}" if where else f"HTTP {status}"
    text = " ".join(body.decode(errors="replace").split())
    return f"{head}: {text}" if text else head


def allow_open_files(concurrency: int) -> None:
    """A file descriptor for every request in flight: the usual soft limit is 1024. UsageError if that cannot be had."""
    wanted = concurrency + _SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < wanted:
        if 0 <= hard < wanted:
            raise UsageError(
                f"{concurrency} requests in flight need {wanted} open files; the system allows {hard}",
                fix=f"--concurrency {max(1, hard - _SPARE_FILES)}, or raise `ulimit -Hn`",
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
