"""Work that a signal may end at any moment (runtime/interruption.py)."""

import asyncio
import os
import signal

import pytest

from disagg_cli.errors import DisaggError, Interrupted
from disagg_cli.runtime.interruption import until_interrupted


async def nothing():
    return "done"


def test_work_that_nobody_interrupts():
    assert until_interrupted(nothing()) == "done"


def test_a_signal_before_the_loop_runs(monkeypatch):
    real = asyncio.run

    def run(work):
        os.kill(os.getpid(), signal.SIGTERM)
        return real(work)

    monkeypatch.setattr(asyncio, "run", run)
    with pytest.raises(Interrupted):
        until_interrupted(asyncio.sleep(20))


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_no_answer_of_a_host(signum):
    """Wherever it comes. The work ends in order, which may take a while, and another signal does not shorten that."""
    done = []

    async def look():
        try:
            os.kill(os.getpid(), signum)
            await asyncio.sleep(60)
        except DisaggError as problem:
            return problem
        finally:
            os.kill(os.getpid(), signum)
            await asyncio.sleep(0.01)
            done.append("let go of the host")

    before = signal.getsignal(signum)
    with pytest.raises(Interrupted, match=f"interrupted by {signum.name}, and all is well"):
        until_interrupted(look(), and_then=", and all is well")
    assert done == ["let go of the host"]
    assert signal.getsignal(signum) is before


def test_a_signal_that_comes_too_late_to_cancel_anything():
    async def all_but_done():
        os.kill(os.getpid(), signal.SIGTERM)
        return "done"

    with pytest.raises(Interrupted):
        until_interrupted(all_but_done())


def test_a_signal_that_was_ignored_before():
    """As under nohup."""

    async def unmoved():
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(0.01)
        return "done"

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert until_interrupted(unmoved()) == "done"
    finally:
        signal.signal(signal.SIGHUP, before)
