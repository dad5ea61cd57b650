"""Work of an event loop that a signal may end at any moment."""

import asyncio
import contextlib
import signal
from collections.abc import Coroutine
from types import FrameType
from typing import Any, TypeVar

from disagg_cli.errors import Interrupted

ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
Result = TypeVar("Result")


def until_interrupted(work: Coroutine[Any, Any, Result], *, and_then: str = "") -> Result:
    """Run it, as asyncio.run does. A signal cancels it, and is raised as Interrupted once it has ended.

    What a signal handler raises comes up anywhere in a loop: as what a host is said to have answered, or never. Those
    signals that whoever started us had us ignore, as `nohup` does, stay ignored. and_then: what became of the work.
    """
    caught: list[signal.Signals] = []
    tasks: list[asyncio.Task[Result]] = []

    def stop(signum: int, _frame: FrameType | None) -> None:
        caught.append(signal.Signals(signum))
        for task in tasks if len(caught) == 1 else ():
            with contextlib.suppress(RuntimeError):  # its loop is closed
                task.get_loop().call_soon_threadsafe(task.cancel)

    async def run() -> Result:
        tasks.append(asyncio.create_task(work))
        if caught:  # before there was anything to cancel
            tasks[0].cancel()
        return await tasks[0]

    heard = [signum for signum in ASKING if signal.getsignal(signum) is not signal.SIG_IGN]
    before = {signum: signal.signal(signum, stop) for signum in heard}
    try:
        result = asyncio.run(run())
    except asyncio.CancelledError:
        if not caught:
            raise
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
    if caught:
        raise Interrupted(f"interrupted by {caught[0].name}{and_then}")
    return result
