"""What stands in for sockets and threads: messages wait in inboxes, and endless loops are run until theirs is empty.

SGLang's managers start threads that read a socket or a queue for ever. Here a thread only remembers what it would run;
whoever drives the manager runs it when there is something to read.
"""

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any


class Silence(BaseException):
    """Nothing is left to read. Not an Exception: SGLang's loops catch those."""


class Inbox:
    """A socket's receiving end, or a queue between threads."""

    def __init__(self) -> None:
        self._waiting: deque[Any] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def put(self, item: Any) -> None:
        """Add one."""
        self._waiting.append(item)

    def get(self, *_how: Any) -> Any:
        """Take the oldest. Raises Silence where there is none."""
        if not self._waiting:
            raise Silence
        return self._waiting.popleft()

    recv_multipart = get

    def send_multipart(self, parts: Iterable[bytes], *_how: Any) -> None:
        """Add a message: the sending end of the same socket."""
        self.put(list(parts))

    def drain(self) -> list[Any]:
        """Take all."""
        taken = list(self._waiting)
        self._waiting.clear()
        return taken


class Wire:
    """The inboxes of all ranks, by port."""

    HOST = "127.0.0.1"

    def __init__(self) -> None:
        self._inboxes: dict[int, Inbox] = defaultdict(Inbox)

    def inbox(self, port: int) -> Inbox:
        """The inbox of one rank."""
        return self._inboxes[port]

    def connect(self, endpoint: str) -> Inbox:
        """The inbox behind an endpoint such as tcp://127.0.0.1:20001."""
        return self.inbox(int(endpoint.rsplit(":", 1)[1]))


class Threads:
    """Stands in for the module `threading` of one manager: remembers what its threads would run."""

    def __init__(self) -> None:
        self.targets: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []

    def module(self) -> SimpleNamespace:
        """The module, with its other names as they are."""
        return SimpleNamespace(**{**vars(threading), "Thread": self._thread})

    def run(self, name: str, inbox: Inbox | None = None) -> None:
        """Run the threads whose function begins so, and reads this queue if one is named, until they find nothing.

        Raises what they raise.
        """
        for target, args in self.targets:
            if target.__name__.startswith(name) and (inbox is None or inbox in args):
                try:
                    target(*args)
                except Silence:
                    continue

    def _thread(self, target: Callable[..., Any], args: Iterable[Any] = (), **_how: Any) -> SimpleNamespace:
        return SimpleNamespace(start=lambda: self.targets.append((target, tuple(args))))
