"""Servers forked from a warm parent: whose parent it is, and what happens when it does not do its part."""

import asyncio
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from places import FOREVER, PARENT, cold, warm, warm_place
from waiting import until

from disagg_cli.errors import LaunchFailed
from disagg_cli.executors import sessions
from disagg_cli.executors import warm as warm_module
from disagg_cli.executors.protocol import PlaceLost
from disagg_cli.executors.warm import SHARED_PARENT, WarmExecutor
from disagg_cli.settings import WARM

TINY_PARENT = Path(__file__).parents[1] / "tiny_parent.py"


@pytest.fixture
def python(tmp_path, monkeypatch):
    """Make the parent's Python a script of the shell; it is called with `-m MODULE SOCKET`."""
    monkeypatch.delenv(SHARED_PARENT, raising=False)

    def run(script):
        file = tmp_path / "python"
        file.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\n{script}\n")
        file.chmod(0o700)
        monkeypatch.setattr(sys, "executable", str(file))
        return lambda: int((tmp_path / "pid").read_text())

    return run


@pytest.fixture
def executor(tmp_path):
    return WarmExecutor(tmp_path / "parent.log")


@pytest.fixture
def own_parent(python, executor):
    """An executor with a tiny parent of its own, once it is opened, and the parent's pid."""
    return executor, python(f"exec {sys.executable} {TINY_PARENT} $3")


async def test_its_own_parent_ends_with_it(own_parent, tmp_path):
    executor, parent = own_parent
    await executor.open()
    assert sessions.members(parent()) == (parent(),)
    await executor.close()
    assert sessions.members(parent()) == ()


async def test_closing_ends_the_servers_of_its_own_parent(own_parent, tmp_path):
    executor, _ = own_parent
    await executor.open()
    handle = await executor.start(warm(FOREVER), tmp_path / "log")
    await until(lambda: sessions.members(handle.pid))
    await executor.close()
    await until(lambda: not sessions.members(handle.pid))


async def test_a_shared_parent_is_left_running(shared_parent, tmp_path):
    for _ in range(2):
        async with warm_place(tmp_path) as here:
            handle = await here.start("pass")
            while await here.executor.poll(handle) is None:
                await until(lambda: True)


async def test_what_the_parent_has_not_imported_starts_cold(shared_parent, tmp_path):
    async with warm_place(tmp_path) as here:
        handle = await here.executor.start(cold(FOREVER), tmp_path / "cold.log")
        here.started.append(handle)
        await until(lambda: "ready" in (tmp_path / "cold.log").read_text())
        await here.executor.terminate(handle)
        while (code := await here.executor.poll(handle)) is None:
            await until(lambda: True)
        assert (code, await here.executor.survivors(handle)) == (-signal.SIGTERM, ())


async def test_a_cancelled_question_leaves_no_answer_for_the_next(own_parent, tmp_path):
    """A launch that ends cancels its watch over processes, mostly while that waits for an answer."""
    executor, parent = own_parent
    await executor.open()
    ended = await executor.start(warm("raise SystemExit(3)"), tmp_path / "0")
    runs = await executor.start(warm(FOREVER), tmp_path / "1")
    await until(lambda: not sessions.members(ended.pid))
    os.kill(parent(), signal.SIGSTOP)
    question = asyncio.create_task(executor.poll(ended))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    question.cancel()
    os.kill(parent(), signal.SIGCONT)
    assert await executor.poll(runs) is None
    assert await executor.poll(ended) == 3
    await executor.close()


async def test_a_starved_parent_keeps_no_death_from_being_noticed(own_parent, tmp_path):
    """Whoever runs is seen to run without its help; it is asked only how one ended that has gone."""
    executor, parent = own_parent
    await executor.open()
    handle = await executor.start(warm(FOREVER), tmp_path / "log")
    os.kill(parent(), signal.SIGSTOP)
    assert await asyncio.wait_for(executor.poll(handle), 5) is None
    os.kill(parent(), signal.SIGCONT)
    await executor.close()


async def test_its_socket_is_in_the_runs_own_folder(own_parent, tmp_path):
    """However the run ends, nothing is left in /tmp."""
    executor, _ = own_parent
    await executor.open()
    assert executor.socket == tmp_path / "parent.socket"
    await executor.close()
    assert not executor.socket.exists()


async def test_servers_are_lost_with_their_parent_through_no_fault_of_theirs(own_parent, tmp_path):
    executor, parent = own_parent
    await executor.open()
    ended = await executor.start(replace(warm("pass"), name="ended-before"), tmp_path / "log")
    while await executor.poll(ended) is None:
        await until(lambda: True)
    handles = [await executor.start(replace(warm(FOREVER), name=name), tmp_path / name) for name in ("a-0", "b-1")]
    os.kill(parent(), signal.SIGKILL)
    await until(lambda: not sessions.members(handles[0].pid))
    with pytest.raises(PlaceLost) as caught:
        await executor.poll(handles[0])
    assert caught.value.what == (
        f"the warm parent (pid {parent()}) was killed by SIGKILL; lost with it, through no fault of theirs: a-0, b-1"
    )
    assert caught.value.processes == ("a-0", "b-1")
    await until(lambda: not any(sessions.members(handle.pid) for handle in handles))


async def test_a_run_whose_parent_is_gone_can_still_stop(own_parent, tmp_path):
    executor, parent = own_parent
    await executor.open()
    handle = await executor.start(warm(PARENT), tmp_path / "log")
    await until(lambda: len(sessions.members(handle.pid)) == 2)
    os.kill(parent(), signal.SIGKILL)
    await until(lambda: len(sessions.members(handle.pid)) == 1)  # what it had started itself is left
    await executor.terminate(handle)
    await executor.kill(handle)
    await until(lambda: not sessions.members(handle.pid))
    assert await executor.survivors(handle) == ()
    await executor.close()


async def test_a_server_that_dies_is_not_its_parent(own_parent, tmp_path):
    executor, _ = own_parent
    await executor.open()
    victim, other = [await executor.start(warm(FOREVER), tmp_path / name) for name in ("0", "1")]
    os.kill(victim.pid, signal.SIGKILL)
    while (code := await executor.poll(victim)) is None:
        await until(lambda: True)
    assert code == -signal.SIGKILL
    assert await executor.poll(other) is None
    await executor.close()


async def test_a_server_that_needs_another_import_starts_cold(shared_parent, tmp_path, monkeypatch):
    """The parent has read TINY_IMPORT once for all. A cold `python -m sglang.launch_server` is no tiny program."""
    said = []
    executor = WarmExecutor(tmp_path / "parent.log", tell=said.append)
    await executor.open()
    (tmp_path / "sglang").mkdir()
    (tmp_path / "sglang" / "__init__.py").touch()
    (tmp_path / "sglang" / "launch_server.py").write_text("import os; print('cold', os.environ['TINY_IMPORT'])")
    monkeypatch.chdir(tmp_path)
    handle = await executor.start(warm("print('warm')", TINY_IMPORT="2"), tmp_path / "log")
    while await executor.poll(handle) is None:
        await until(lambda: True)
    await executor.close()
    assert (tmp_path / "log").read_text() == "cold 2\n"
    assert said == ["program starts cold: read while SGLang is imported, and set otherwise now: TINY_IMPORT"]


async def test_a_parent_that_dies_while_it_imports(python, executor, tmp_path):
    python("echo 'ImportError: no sglang' >&2; exit 7")
    with pytest.raises(LaunchFailed, match=r"died while it imported SGLang \(exit code 7\)") as caught:
        await executor.open()
    assert "--cold" in caught.value.fix
    await executor.close()
    assert caught.value.where == str(tmp_path / "parent.log")
    assert (tmp_path / "parent.log").read_text() == "ImportError: no sglang\n"


async def test_a_parent_that_never_gets_ready(python, executor, monkeypatch):
    parent = python("exec cat")
    monkeypatch.setattr(warm_module, "WARM", replace(WARM, ready=0.3))
    with pytest.raises(LaunchFailed, match="the warm parent was not ready after 0 s"):
        await executor.open()
    await executor.close()
    assert sessions.members(parent()) == ()


async def test_a_parent_that_says_no_more_and_lives_on(python, executor, monkeypatch):
    python("exec cat > /dev/null")
    monkeypatch.setattr(warm_module, "WARM", replace(WARM, ready=0.3))
    with pytest.raises(LaunchFailed, match="the warm parent was not ready after 0 s"):
        await executor.open()
    await executor.close()


async def test_what_libraries_print_before_it_is_ready_does_not_matter(python, executor):
    python(f"echo a warning; exec {sys.executable} {TINY_PARENT} $3")
    await executor.open()
    await executor.close()


async def test_a_parent_that_does_not_answer(tmp_path, executor, monkeypatch):
    monkeypatch.setenv(SHARED_PARENT, str(tmp_path / "silent"))
    monkeypatch.setattr(warm_module, "WARM", replace(WARM, answer=0.1))
    server = await asyncio.start_unix_server(lambda _reader, _writer: None, tmp_path / "silent")
    await executor.open()
    with pytest.raises(LaunchFailed, match=r"the warm parent \(pid \d+\) has not answered for 0 s"):
        await executor.start(warm(FOREVER), tmp_path / "log")
    await executor.close()
    server.close()


async def test_a_shared_parent_that_is_not_there(tmp_path, executor, monkeypatch):
    monkeypatch.setenv(SHARED_PARENT, str(tmp_path / "nobody"))
    with pytest.raises(LaunchFailed, match="no warm parent answers") as caught:
        await executor.open()
    assert caught.value.where == str(tmp_path / "nobody")
