"""What is particular to processes that this one starts itself."""

import os
import sys

import pytest
from places import HERE, LEAVES_A_CHILD, cold, local_place
from waiting import until

from disagg_cli.engine.commands import Command
from disagg_cli.errors import LaunchFailed
from disagg_cli.executors.local import MARK, LocalExecutor, environment


async def test_a_program_that_is_not_there(tmp_path):
    command = Command(name="prefill-0", host=HERE, argv=("/no/such/python", "-m", "x"), env={})
    with pytest.raises(LaunchFailed, match=r"prefill-0 could not be started: .*No such file") as caught:
        await LocalExecutor().start(command, tmp_path / "log")
    assert caught.value.where == "/no/such/python"


async def test_a_log_is_added_to(tmp_path):
    (tmp_path / "0.log").write_text("before\n")
    async with local_place(tmp_path) as here:
        handle = await here.start("print('after')")
        await until(lambda: handle.log.read_text() == "before\nafter\n")


async def test_survivors_outlive_their_leader(tmp_path):
    async with local_place(tmp_path) as here:
        handle = await here.start(LEAVES_A_CHILD)
        while await here.executor.poll(handle) is None:
            await until(lambda: True)
        assert await here.executor.survivors(handle) == (int(handle.log.read_text()),)


async def test_a_handle_says_what_was_started(tmp_path):
    async with local_place(tmp_path) as here:
        handle = await here.start("pass")
    assert (handle.name, handle.host, handle.log) == ("program", "localhost", tmp_path / "0.log")


@pytest.mark.parametrize(
    ("inherited", "given", "merged"),
    [
        (None, None, None),
        ("/a", None, "/a"),
        (None, "/b", "/b"),
        ("/a", "/b", f"/b{os.pathsep}/a"),  # the stand-ins come first, and the user's folders stay
        ("", "/b", "/b"),
    ],
)
def test_pythonpath_is_added_to(monkeypatch, inherited, given, merged):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if inherited is not None:
        monkeypatch.setenv("PYTHONPATH", inherited)
    env = {} if given is None else {"PYTHONPATH": given}
    assert environment(Command(name="x", host=HERE, argv=(sys.executable,), env=env)).get("PYTHONPATH") == merged


async def test_a_process_inherits_this_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("INHERITED", "a")
    monkeypatch.setenv("BOTH", "a")
    async with local_place(tmp_path) as here:
        handle = await here.start("import os; print(os.environ['INHERITED'], os.environ['BOTH'])", BOTH="b")
        await here.ended(handle)
        assert handle.log.read_text() == "a b\n"


def test_a_mark_is_not_inherited(monkeypatch):
    """A launch inside a worker of another run must not pass its own processes off as that run's."""
    monkeypatch.setenv(MARK, "/another/run/logs/decode-0.log boot/0a1b2c")
    assert MARK not in environment(cold("pass"))


def test_this_environment_is_left_alone(monkeypatch):
    environment(cold("pass", DISAGG_TEST_ONLY="1"))
    assert "DISAGG_TEST_ONLY" not in os.environ
