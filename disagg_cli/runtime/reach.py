"""Whether the hosts of a run answer at all: Slurm and TCP take minutes to see that one has lost its power.

It is only told. What becomes of the run is for the executor to say, which knows whether a host is gone for good.
"""

import asyncio
import errno
import select
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial

from disagg_cli.runtime.state import Recorder
from disagg_cli.topology.deployment import Deployment

LOOK_S = 1.1
"""From the beginning of one look at a host to that of the next."""
ANSWER_S = 1.05
"""For an answer to one look: a first packet that is lost comes again after a second."""
MISSES = 3
"""Looks in a row that nothing has answered. The last begins at most MISSES * LOOK_S after the host is lost: with its
own ANSWER_S that is less than five seconds."""
NOBODYS = 9
"""A port (discard) at which nobody listens: a host that lives says so."""
SILENT = frozenset({errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN})
"""What a connection fails with where there is no host; any other error comes from one."""
KIND = socket.SOCK_STREAM | socket.SOCK_NONBLOCK
TICK_S = 0.05

Where = tuple[int, tuple[object, ...]]
"""An address family, and an address of it with a port."""


class Reach:
    """Tells in a run's record which of its hosts answer nothing any more. silent: their names, now."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.silent: list[str] = []
        self._watching: asyncio.Future[None] | None = None

    def begin(self, deployment: Deployment) -> asyncio.Future[None]:
        """Watch from now on beside whatever else is done, if that is not so already."""
        if self._watching is None or self._watching.done():
            self.silent.clear()
            self._watching = asyncio.ensure_future(self.watch(deployment))
        return self._watching

    def end(self) -> None:
        """Watch no longer."""
        if self._watching is not None:
            self._watching.cancel()

    async def watch(self, deployment: Deployment) -> None:
        """Never return, and tell of the hosts of workers that are other machines than this one."""
        ports: dict[tuple[str, str], list[int]] = {}
        for worker in deployment.workers:
            for host in (share.host for share in worker.shares if not share.host.local):
                listens = [worker.ports.http] if host == worker.host else []
                ports.setdefault((host.name, host.address), []).extend(listens)
        looks = (of_host(*host, [*found, NOBODYS], partial(self._tell, host[0])) for host, found in ports.items())
        await asyncio.gather(*looks)
        await asyncio.Event().wait()

    def _tell(self, name: str, text: str) -> None:
        answers = name in self.silent  # again
        (self.silent.remove if answers else self.silent.append)(name)
        if self._recorder.ending:
            return
        self._recorder.state.waiting_for = f"{', '.join(self.silent)} to answer" if self.silent else ""
        self._recorder.event("reach", text, host=name, answers=answers)


async def of_host(name: str, address: str, ports: Sequence[int], tell: Callable[[str], object]) -> None:
    """Never return, and tell where a host answers nothing any more, and where it does again.

    What has never answered, as behind a firewall, tells nothing by its silence.
    """
    try:
        where = [await asyncio.to_thread(_resolved, address, port) for port in ports]
    except OSError:
        return
    heard, misses, last = False, 0, 0.0
    while True:
        began = time.monotonic()
        if await answers(where if misses or not heard else where[:1]):
            if misses >= MISSES:
                tell(f"{name} answers again, after {time.monotonic() - last:.0f} s")
            heard, misses, last = True, 0, time.monotonic()
        elif heard:
            misses += 1
        if misses == MISSES:
            tell(f"{name} ({address}) has answered no connection for {time.monotonic() - last:.0f} s")
        await asyncio.sleep(began + LOOK_S - time.monotonic())


async def answers(where: Sequence[Where]) -> bool:
    """Whether the host answers at one of these: with a connection, or by refusing one. That is for its kernel to do,
    which does so however busy the server is.

    The kernel here is asked once more after the time is up: how late this process comes to look counts for nothing.
    """
    deadline = time.monotonic() + ANSWER_S
    with ExitStack() as stack:
        try:
            knocks = [stack.enter_context(socket.socket(family, KIND)) for family, _ in where]
        except OSError:
            return True  # there is no socket to be had, which tells nothing of the host
        errors = [knock.connect_ex(address) for knock, (_, address) in zip(knocks, where, strict=True)]
        while True:
            late = time.monotonic() > deadline
            for number, knock in enumerate(knocks):
                if errors[number] == errno.EINPROGRESS and _done(knock):
                    errors[number] = knock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if not SILENT.issuperset(set(errors) - {errno.EINPROGRESS}):
                return True
            if late or errno.EINPROGRESS not in errors:
                return False
            await asyncio.sleep(TICK_S)


def _done(knock: socket.socket) -> bool:
    """Whether it is known by now what becomes of a connection."""
    poll = select.poll()
    poll.register(knock, select.POLLOUT)
    return bool(poll.poll(0))


def _resolved(address: str, port: int) -> Where:
    family, _, _, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    return family, where
