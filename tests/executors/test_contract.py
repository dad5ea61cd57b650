"""What every executor promises (executors/protocol.py), on every place that there is."""

import contextlib
import os
import signal
from dataclasses import replace
from importlib.metadata import version

import pytest
from places import FOREVER, PARENT, STUBBORN, child_with, local_place, slurm_place, ssh_place, taken, warm_place
from waiting import until

from disagg_cli.executors.protocol import UNKNOWN_EXIT


@pytest.fixture(params=["local", "warm", "ssh", "slurm"])
def place(request, tmp_path):
    """A place to start processes in: an async context manager."""
    return _place(request, tmp_path)


@pytest.fixture(params=["local", "warm", "ssh"])
def place_of_pids(request, tmp_path):
    """The same, where a handle has the pid of the process. For a step it is its srun's: the step's own are known to
    nobody but its node."""
    return _place(request, tmp_path)


def _place(request, folder):
    if request.param == "local":
        return local_place(folder)
    if request.param == "ssh":
        return ssh_place(folder, request.getfixturevalue("ssh_lab"))
    if request.param == "slurm":
        return slurm_place(folder, request.getfixturevalue("held"))
    request.getfixturevalue("shared_parent")
    return warm_place(folder)


async def ready(here, handle):
    """Wait until a program says that it is."""
    await until(lambda: "ready" in here.said(handle), 30)


async def test_a_process_runs(place):
    async with place as here:
        handle = await here.start(FOREVER)
        await ready(here, handle)
        assert await here.executor.poll(handle) is None
        assert await here.executor.survivors(handle) == (handle.pid,)


async def test_its_session_is_there_at_once(place):
    """Whoever stops right after a start must find what it started."""
    async with place as here:
        for _ in range(5):
            handle = await here.start(FOREVER)
            assert await here.executor.survivors(handle) == (handle.pid,)
            assert handle.log.exists()


async def test_it_leads_a_session_of_its_own(place_of_pids):
    async with place_of_pids as here:
        handle = await here.start("import os; print(os.getsid(0), os.getpid())")
        await here.ended(handle)
        assert here.said(handle) == f"{handle.pid} {handle.pid}\n"


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("pass", 0),
        ("raise SystemExit(3)", 3),
        ("raise SystemExit('the reason')", 1),
        ("raise SystemExit(-1)", 255),
        ("import sys; sys.exit()", 0),
        ("1 / 0", 1),
        *(
            (f"import os, signal; os.kill(os.getpid(), signal.{signum.name})", -signum)
            for signum in (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGSEGV, signal.SIGINT)
        ),
    ],
)
async def test_exit_codes(place, code, exit_code):
    async with place as here:
        assert await here.ended(await here.start(code)) == exit_code


async def test_an_exit_code_is_not_forgotten(place):
    async with place as here:
        handle = await here.start("raise SystemExit(3)")
        await here.ended(handle)
        assert [await here.executor.poll(handle) for _ in range(3)] == [3, 3, 3]


async def test_exit_codes_are_not_mixed_up(place):
    async with place as here:
        handles = [await here.start(f"raise SystemExit({code})") for code in range(5)]
        assert [await here.ended(handle) for handle in reversed(handles)] == [4, 3, 2, 1, 0]


async def test_output_and_errors_go_to_the_log(place):
    async with place as here:
        handle = await here.start("import sys; print('out', flush=True); print('err', file=sys.stderr); 1 / 0")
        await here.ended(handle)
        log = here.said(handle)
        assert log.index("out") < log.index("err") < log.index("ZeroDivisionError")


async def test_the_reason_of_an_exit_is_in_the_log(place):
    async with place as here:
        handle = await here.start("raise SystemExit('the reason')")
        await here.ended(handle)
        assert here.said(handle) == "the reason\n"


async def test_standard_input_is_empty(place):
    async with place as here:
        assert await here.ended(await here.start("import sys; raise SystemExit(len(sys.stdin.read()))")) == 0


async def test_the_commands_environment_is_on_top_of_the_hosts(place):
    async with place as here:
        show = "import os; print(*(os.environ[name] for name in ('HOME', 'GIVEN')))"
        handle = await here.start(show, GIVEN="c d")
        await here.ended(handle)
        assert here.said(handle) == f"{os.environ['HOME']} c d\n"


async def test_terminate_asks(place):
    async with place as here:
        asked = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(9)); "
        handle = await here.start(asked + FOREVER)
        await ready(here, handle)
        await here.executor.terminate(handle)
        assert await here.ended(handle) == 9


async def test_terminate_does_not_force(place):
    async with place as here:
        handle = await here.start(STUBBORN)
        await ready(here, handle)
        await here.executor.terminate(handle)
        assert await here.executor.survivors(handle) == (handle.pid,)
        await here.executor.kill(handle)
        assert await here.ended(handle) == -signal.SIGKILL


async def test_a_process_that_has_ended_can_be_ended_again(place):
    async with place as here:
        handle = await here.start("pass")
        await here.ended(handle)
        await here.executor.terminate(handle)
        await here.executor.kill(handle)
        assert await here.executor.survivors(handle) == ()


async def test_survivors_are_all_of_its_session(place_of_pids):
    async with place_of_pids as here:
        handle = await here.start(PARENT)
        await ready(here, handle)
        child = int(here.said(handle).split()[0])
        assert set(await here.executor.survivors(handle)) == {handle.pid, child}


async def test_kill_reaches_children(place, tmp_path):
    async with place as here:
        handle = await here.start(child_with(tmp_path / "lock") + FOREVER)
        await ready(here, handle)
        await here.executor.kill(handle)
        assert await here.ended(handle) == -signal.SIGKILL
        await here.gone(handle)
        assert not taken(tmp_path / "lock")


async def test_kill_reaches_what_outlived_the_leader(place, tmp_path):
    async with place as here:
        handle = await here.start(child_with(tmp_path / "lock"))
        assert await here.ended(handle) == 0
        await here.executor.kill(handle)
        await here.gone(handle)
        assert await here.executor.survivors(handle) == ()
        assert not taken(tmp_path / "lock")


async def test_taken_ports(place):
    async with place as here:

        async def taken():
            (facts,) = await here.executor.look([here.host], {here.host: {port: "x"}}, [])
            return facts.taken

        listen = f"import socket; server = socket.create_server(('{here.host.address}', 0)); "
        handle = await here.start(listen + f"print(server.getsockname()[1]); {FOREVER}")
        await ready(here, handle)
        port = int(here.said(handle).split()[0])
        assert await taken() == {here.host.address: (port,)}
        await here.executor.kill(handle)
        await here.gone(handle)
        assert await taken() == {here.host.address: ()}


async def test_what_is_found_on_a_host(place, tmp_path):
    async with place as here:
        elsewhere = replace(here.host, address="203.0.113.1")
        (facts,) = await here.executor.look([here.host], {elsewhere: {}}, [str(tmp_path), "/no/such"])
        assert (facts.host, facts.problem, facts.plugin) == (here.host.name, "", True)
        assert (facts.foreign, facts.missing) == (("203.0.113.1",), ("/no/such",))
        assert set(facts.cores) == os.sched_getaffinity(0)
        assert facts.facts.installed == version("sglang")


async def test_a_folder_is_there_under_the_same_path(place, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text("{}")
    async with place as here:
        await here.executor.provide([here.host], tmp_path / "model")
        assert await here.ended(await here.start(f"print(open('{tmp_path}/model/config.json').read())")) == 0


@contextlib.asynccontextmanager
async def another(here):
    """An executor that has started nothing."""
    fresh = here.again()
    await fresh.open()
    yield fresh
    await fresh.close()


async def test_another_executor_finds_a_process_by_its_handle(place):
    async with place as here:
        handle = await here.start(FOREVER)
        await ready(here, handle)
        async with another(here) as fresh:
            assert await fresh.poll(handle) is None
            assert await fresh.survivors(handle) == (handle.pid,)
            await fresh.terminate(handle)
            await here.gone(handle)
            here.executor, before = fresh, here.executor
            assert await here.ended(handle) in (-signal.SIGTERM, UNKNOWN_EXIT)
            here.executor = before


async def test_another_executor_kills_a_process_by_its_handle(place):
    async with place as here:
        handle = await here.start(PARENT)
        await ready(here, handle)
        async with another(here) as fresh:
            await fresh.kill(handle)
            await here.gone(handle)
            await here.gone(handle, fresh)
            await fresh.collect(handle)


async def test_close_ends_nothing(place):
    async with place as here:
        handle = await here.start(FOREVER)
        await ready(here, handle)
        async with another(here) as fresh:
            await fresh.poll(handle)
        assert await here.executor.poll(handle) is None


async def test_collect_brings_the_whole_log(place):
    async with place as here:
        handle = await here.start("print('x' * 2_000_000); print('last')")
        await here.gone(handle)
        await here.executor.collect(handle)
        assert here.said(handle) == "x" * 2_000_000 + "\nlast\n"
