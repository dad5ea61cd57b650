"""Waiting for something to become true: at once when it is, and with a deadline."""

import asyncio
import time
from collections.abc import Callable


def wait_until(true: Callable[[], object], within: float = 10) -> None:
    """Block until it is true; AssertionError after `within` seconds."""
    deadline = time.monotonic() + within
    while not true():
        assert time.monotonic() < deadline, f"not so after {within} s: {true}"
        time.sleep(0.01)


async def until(true: Callable[[], object], within: float = 10) -> None:
    """The same, while other tasks go on."""
    deadline = time.monotonic() + within
    while not true():
        assert time.monotonic() < deadline, f"not so after {within} s: {true}"
        await asyncio.sleep(0.01)
