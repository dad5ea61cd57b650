"""What every executor promises (executors/protocol.py), on every place that there is."""

import os
import signal
import socket

import pytest
from places import FOREVER, HERE, LEAVES_A_CHILD, PARENT, STUBBORN, local_place, warm_place
from waiting import until

from disagg_cli.executors import sessions


@pytest.fixture(params=["local", "warm"])
def place(request, tmp_path):
    """A place to start processes in: an async context manager."""
    if request.param == "local":
        return local_place(tmp_path)
    request.getfixturevalue("shared_parent")
    return warm_place(tmp_path)


def said(handle):
    """Whether the log says that the program is ready."""
    return lambda: handle.log.exists() and "ready" in handle.log.read_text()


async def ended(place, handle):
    """The exit code, once there is one."""
    while (code := await place.executor.poll(handle)) is None:
        await until(lambda: True)
    return code


async def test_a_process_runs(place):
    async with place as here:
        handle = await here.start(FOREVER)
        await until(said(handle))
        assert await here.executor.poll(handle) is None
        assert await here.executor.survivors(handle) == (handle.pid,)
        assert sessions.same_process(handle.pid, handle.born)


async def test_its_session_is_there_at_once(place):
    """Whoever stops right after a start must find what it started."""
    async with place as here:
        for _ in range(20):
            handle = await here.start(FOREVER)
            assert await here.executor.survivors(handle) == (handle.pid,)
            assert handle.log.exists()


async def test_it_leads_a_session_of_its_own(place):
    async with place as here:
        handle = await here.start(FOREVER)
        await until(said(handle))
        assert os.getsid(handle.pid) == handle.pid != os.getsid(0)


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("pass", 0),
        ("raise SystemExit(3)", 3),
        ("raise SystemExit('the reason')", 1),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("1 / 0", 1),
    ],
)
async def test_exit_codes(place, code, exit_code):
    async with place as here:
        assert await ended(here, await here.start(code)) == exit_code


async def test_an_exit_code_is_not_forgotten(place):
    async with place as here:
        handle = await here.start("raise SystemExit(3)")
        await ended(here, handle)
        assert [await here.executor.poll(handle) for _ in range(3)] == [3, 3, 3]


async def test_exit_codes_are_not_mixed_up(place):
    async with place as here:
        handles = [await here.start(f"raise SystemExit({code})") for code in range(5)]
        assert [await ended(here, handle) for handle in reversed(handles)] == [4, 3, 2, 1, 0]


async def test_output_and_errors_go_to_the_log(place):
    async with place as here:
        handle = await here.start("import sys; print('out', flush=True); print('err', file=sys.stderr); 1 / 0")
        await ended(here, handle)
        log = handle.log.read_text()
        assert log.index("out") < log.index("err") < log.index("ZeroDivisionError")


async def test_the_reason_of_an_exit_is_in_the_log(place):
    async with place as here:
        handle = await here.start("raise SystemExit('the reason')")
        await ended(here, handle)
        assert handle.log.read_text() == "the reason\n"


async def test_standard_input_is_empty(place):
    async with place as here:
        assert await ended(here, await here.start("import sys; raise SystemExit(len(sys.stdin.read()))")) == 0


async def test_the_commands_environment_is_on_top_of_this_ones(place, monkeypatch):
    monkeypatch.setenv("INHERITED", "a")
    monkeypatch.setenv("BOTH", "a")
    async with place as here:
        show = "import os; print(*(os.environ[name] for name in ('INHERITED', 'BOTH', 'GIVEN')))"
        handle = await here.start(show, BOTH="b", GIVEN="c d")
        await ended(here, handle)
        assert handle.log.read_text() == "a b c d\n"


async def test_terminate_asks(place):
    async with place as here:
        asked = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(9)); "
        handle = await here.start(asked + FOREVER)
        await until(said(handle))
        await here.executor.terminate(handle)
        assert await ended(here, handle) == 9


async def test_terminate_does_not_force(place):
    async with place as here:
        handle = await here.start(STUBBORN)
        await until(said(handle))
        await here.executor.terminate(handle)
        assert await here.executor.survivors(handle) == (handle.pid,)
        await here.executor.kill(handle)
        assert await ended(here, handle) == -signal.SIGKILL


async def test_a_process_that_has_ended_can_be_ended_again(place):
    async with place as here:
        handle = await here.start("pass")
        await ended(here, handle)
        await here.executor.terminate(handle)
        await here.executor.kill(handle)
        assert await here.executor.survivors(handle) == ()


async def test_kill_reaches_children(place):
    async with place as here:
        handle = await here.start(PARENT)
        await until(said(handle))
        child = int(handle.log.read_text().split()[0])
        assert set(await here.executor.survivors(handle)) == {handle.pid, child}
        await here.executor.kill(handle)
        assert await ended(here, handle) == -signal.SIGKILL
        await until(lambda: not sessions.members(handle.pid))


async def test_kill_reaches_what_outlived_the_leader(place):
    async with place as here:
        handle = await here.start(LEAVES_A_CHILD)
        assert await ended(here, handle) == 0
        await here.executor.kill(handle)
        await until(lambda: not sessions.members(handle.pid))
        assert await here.executor.survivors(handle) == ()


async def test_taken_ports(place):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        async with place as here:
            (facts,) = await here.executor.look([HERE], {HERE: {port: "x"}}, [])
            assert facts.taken == {"127.0.0.1": (port,)}
    assert sessions.taken("127.0.0.1", [port]) == ()
