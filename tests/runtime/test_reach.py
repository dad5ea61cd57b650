"""Whether a host answers at all, however busy what runs on it is."""

import asyncio
import contextlib
import socket

import pytest
from deployments import FREE_PORTS, on_cpu, on_gpus
from runs import a_run

from disagg_cli.runtime import reach
from disagg_cli.runtime.reach import Reach, answers

CLOSED = (socket.AF_INET, ("127.0.0.1", FREE_PORTS + 190))


@contextlib.contextmanager
def busy():
    """Where a server listens that takes no connection any more: its kernel leaves them unanswered, too."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        yield socket.AF_INET, listener.getsockname()


async def test_a_server_that_listens():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert await answers([(socket.AF_INET, listener.getsockname())])


async def test_a_server_that_has_died_has_a_host_that_answers():
    assert await answers([CLOSED])


async def test_a_host_whose_server_takes_no_connections_answers_at_another_port():
    with busy() as there:
        assert not await answers([there])
        assert await answers([there, CLOSED])


class Over(Exception):
    """There are no more looks."""


def far():
    return on_gpus("10.0.0.1", prefill={"tp": 2}, decode={"workers": 1})


async def told(monkeypatch, *looks, ending=False):
    """What is told where these looks find an answer, or none."""
    found = iter(looks)

    async def look(_):
        try:
            return next(found)
        except StopIteration:
            raise Over from None

    monkeypatch.setattr(reach, "answers", look)
    monkeypatch.setattr(reach, "LOOK_S", 0.0)
    recorder, said = a_run(), []
    recorder.ending = ending
    recorder.listeners.append(lambda text: said.append(text.partition(" for ")[0].partition(", after")[0]))
    with pytest.raises(Over):
        await Reach(recorder).watch(far())
    return said, recorder.state


async def test_a_host_that_is_lost_is_told_of_once(home, monkeypatch):
    said, state = await told(monkeypatch, True, False, False, False, False, False)
    assert said == ["10.0.0.1 (10.0.0.1) has answered no connection"]
    assert state.waiting_for == "10.0.0.1 to answer"


async def test_a_host_that_comes_back(home, monkeypatch):
    said, state = await told(monkeypatch, True, False, False, False, True, False, False, True)
    assert said == ["10.0.0.1 (10.0.0.1) has answered no connection", "10.0.0.1 answers again"]
    assert state.waiting_for == ""


@pytest.mark.parametrize("looks", [[True, False, False, True, False, False], [False] * 9])
async def test_no_alarm(home, monkeypatch, looks):
    """For fewer misses in a row, and where nothing has ever answered."""
    said, _ = await told(monkeypatch, *looks)
    assert said == []


async def test_a_host_that_is_lost_is_told_of_within_five_seconds(home, monkeypatch):
    """Also where it goes as it has just answered, and while something else is done."""
    lost, looks = asyncio.Event(), iter([True])

    async def look(_):
        if next(looks, False):
            return True
        await asyncio.sleep(reach.ANSWER_S + reach.TICK_S)
        return False

    monkeypatch.setattr(reach, "answers", look)
    recorder = a_run()
    recorder.listeners.append(lambda _: lost.set())
    watching = Reach(recorder).begin(far())
    await asyncio.wait_for(lost.wait(), 30)  # 4.4 s where nothing else runs
    watching.cancel()


async def test_it_is_begun_once_and_again_after_its_end(home, monkeypatch):
    """A run that has lost its router watches from when it serves again."""

    async def look(_):
        return True

    monkeypatch.setattr(reach, "answers", look)
    watched = Reach(a_run())
    first = watched.begin(far())
    assert watched.begin(far()) is first
    first.cancel()
    await asyncio.wait({first})
    second = watched.begin(far())
    await asyncio.sleep(0.05)
    assert not second.done()
    second.cancel()


async def test_nobody_is_told_of_a_host_while_the_run_ends(home, monkeypatch):
    said, _ = await told(monkeypatch, True, False, False, False, ending=True)
    assert said == []


async def test_this_machine_is_not_watched(home, monkeypatch):
    monkeypatch.setattr(reach, "answers", None)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(Reach(a_run()).watch(on_cpu()), 0.2)


def test_a_lost_host_is_told_of_within_five_seconds():
    assert reach.MISSES * reach.LOOK_S + reach.ANSWER_S < 5


async def test_it_ends(home):
    watching = (reaching := Reach(a_run())).begin(far())
    reaching.end()
    await asyncio.wait([watching], timeout=5)
    assert watching.cancelled()
    Reach(a_run()).end()  # one that has not begun
