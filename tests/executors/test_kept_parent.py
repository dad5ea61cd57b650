"""The parent that is kept between runs: brought up once, used while it is right, ended. Tiny programs run in it."""

import json
import os
import signal
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from places import FOREVER, warm
from runs import a_run, process
from waiting import until, wait_until

from disagg_cli.errors import LaunchFailed, UsageError
from disagg_cli.executors import kept_parent, sessions
from disagg_cli.executors import warm as warm_module
from disagg_cli.executors.kept_parent import Place, bring_up, look, take_down
from disagg_cli.executors.warm import SHARED_PARENT, WarmExecutor, parent_environment
from disagg_cli.runtime.supervisor import Supervisor
from disagg_cli.settings import ON_CPU, WARM

TESTS = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    """What is brought up imports next to nothing."""
    monkeypatch.delenv(SHARED_PARENT, raising=False)
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    for module in (kept_parent, warm_module):
        monkeypatch.setattr(module, "MODULE", "tiny_parent")


@pytest.fixture
def place(tmp_path):
    """A home with a path too long for a Unix socket's."""
    home = tmp_path / ("long" * 30)
    yield Place.of(home)
    take_down(Place.of(home), force=True, say=lambda _: None)


def up(place, ttl_s=60.0, **env):
    return bring_up(place, ttl_s=ttl_s, environment={**parent_environment(), **env}, say=lambda _: None)


def down(place, force=False):
    return take_down(place, force=force, say=lambda _: None)


def executor(place, said):
    home = place.folder.parents[1]
    return WarmExecutor(place.folder.parents[2] / "own.log", home=home, tell=said.append)


def test_it_is_brought_up_and_taken_down(place):
    assert look(place) is None
    kept, new = up(place)
    assert new
    assert look(place).pid == kept.pid
    assert os.getsid(kept.pid) == kept.pid
    assert down(place).pid == kept.pid
    assert look(place) is None
    assert not sessions.members(kept.pid)
    assert down(place) is None


def test_it_is_brought_up_once(place):
    kept, _ = up(place, ttl_s=60)
    again, new = up(place, ttl_s=90)
    assert (again.pid, new, again.ttl_s) == (kept.pid, False, 90)


def test_two_at_once_bring_up_one(place):
    found = []
    both = [threading.Thread(target=lambda: found.append(up(place))) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join(20)
    assert len({kept.pid for kept, _ in found}) == 1
    assert sorted(new for _, new in found) == [False, True]


def test_only_its_owner_may_enter(place):
    up(place)
    assert place.folder.stat().st_mode & 0o777 == 0o700
    assert place.socket.stat().st_mode & 0o777 == 0o600


def test_a_folder_that_others_may_enter_is_refused(place):
    place.folder.mkdir(parents=True)
    place.folder.chmod(0o770)
    with pytest.raises(UsageError, match="is open to others"):
        up(place)


def test_a_socket_that_a_dead_parent_has_left(place):
    kept, _ = up(place)
    os.kill(kept.pid, signal.SIGKILL)
    wait_until(lambda: not sessions.members(kept.pid))
    assert place.socket.exists()
    assert look(place) is None
    assert down(place) is None
    again, new = up(place)
    assert new
    assert again.pid != kept.pid


def test_it_ends_itself_when_nobody_uses_it(place):
    kept, _ = up(place, ttl_s=0.1)
    wait_until(lambda: not sessions.members(kept.pid))
    assert not place.socket.exists()


def test_looking_at_it_is_no_use(place):
    kept, _ = up(place)
    time.sleep(0.1)
    assert look(place).idle_since == pytest.approx(kept.since, abs=0.05)


async def test_its_time_to_live_counts_from_the_last_use(place):
    kept, _ = up(place, ttl_s=1.0)
    user = executor(place, [])
    await user.open()
    handle = await user.start(warm(FOREVER), place.folder / "log")
    await until(lambda: time.time() > kept.since + 1.5)
    assert look(place).idle_since is None
    assert sessions.members(handle.pid)
    await user.close()
    await until(lambda: not sessions.members(kept.pid))


async def test_a_launch_uses_it_and_leaves_it(place):
    kept, _ = up(place)
    said = []
    for _ in range(2):
        user = executor(place, said)
        await user.open()
        handle = await user.start(warm(FOREVER), place.folder / "log")
        assert [server["pid"] for server in look(place).servers] == [handle.pid]
        await user.close()
        await until(lambda: not look(place).servers)
    assert look(place).pid == kept.pid
    assert said == [f"servers are forked from the warm parent that is up (pid {kept.pid})"] * 2


async def test_without_it_a_launch_has_one_of_its_own(place):
    user = executor(place, said := [])
    await user.open()
    assert user.socket.parent != place.folder
    await user.close()
    assert said == []


async def test_it_is_not_used_where_the_environment_differs(place, monkeypatch):
    up(place)
    monkeypatch.setenv("TINY_IMPORT", "2")
    user = executor(place, said := [])
    await user.open()
    assert user.socket.parent != place.folder
    await user.close()
    reason = "read while SGLang is imported, and set otherwise now: TINY_IMPORT"
    assert said == [f"the parent that `disagg warm up` brought up is not used: {reason}"]


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A package that the parent imports, and how to install it anew."""
    monkeypatch.setenv("PYTHONPATH", f"{TESTS}{os.pathsep}{tmp_path}")
    file = tmp_path / "tiny_import.py"
    file.write_text("version = 1\n")
    return lambda: file.write_text("version = 10\n")


async def test_it_is_not_used_where_the_installed_code_has_changed(installed, place):
    up(place)
    installed()
    assert look(place).changed == ("tiny_import",)
    user = executor(place, said := [])
    await user.open()
    await user.close()
    assert said == [
        "the parent that `disagg warm up` brought up is not used: installed anew since it was imported: tiny_import"
    ]


def test_bringing_it_up_again_replaces_one_that_is_not_right(installed, place):
    before, _ = up(place)
    installed()
    after, new = up(place)
    assert new
    assert after.pid != before.pid
    assert not sessions.members(before.pid)
    assert up(place, TINY_IMPORT="3")[1]


async def test_one_that_is_not_right_and_serves_is_not_replaced(installed, place):
    user = executor(place, [])
    up(place)
    await user.open()
    handle = await user.start(warm(FOREVER), place.folder / "log")
    installed()
    with pytest.raises(UsageError, match=rf"tiny_import\), and it serves program \({handle.pid}\)"):
        up(place)
    assert sessions.members(handle.pid)
    await user.close()


async def test_servers_keep_it_up_unless_they_may_be_ended(place):
    kept, _ = up(place)
    user = executor(place, [])
    await user.open()
    handle = await user.start(warm(FOREVER), place.folder / "log")
    with pytest.raises(UsageError, match=rf"still serves program \({handle.pid}\)") as caught:
        down(place)
    assert "--force" in caught.value.fix
    assert sessions.members(handle.pid)
    ended = down(place, force=True)
    assert [server["name"] for server in ended.servers] == ["program"]
    await until(lambda: not sessions.members(handle.pid))
    with pytest.raises(LaunchFailed, match=rf"the warm parent \(pid {kept.pid}\) has died; lost with it.*: program"):
        await user.poll(handle)
    await user.close()


async def test_a_run_says_what_its_servers_died_of(home, place):
    kept, _ = up(place)
    user = executor(place, [])
    await user.open()
    supervisor = Supervisor(user, a_run(), ON_CPU)
    supervisor.recorder.state.processes.update({name: process(name) for name in ("decode-0", "decode-1")})
    await supervisor.start([replace(warm(FOREVER), name=name) for name in ("decode-0", "decode-1")])
    os.kill(kept.pid, signal.SIGKILL)
    with pytest.raises(LaunchFailed, match="lost with it, through no fault of theirs: decode-0, decode-1"):
        await supervisor.watch()
    assert {(one.phase, one.detail) for one in supervisor.recorder.state.processes.values() if one.pid} == {
        ("failed", "lost with the warm parent, which has died")
    }
    await user.close()


def test_one_that_hangs_is_named_and_can_be_forced(place, monkeypatch):
    kept, _ = up(place)
    os.kill(kept.pid, signal.SIGSTOP)
    monkeypatch.setattr(kept_parent, "WARM", replace(WARM, answer=0.2))
    for ask in (look, down, up):
        with pytest.raises(LaunchFailed, match=rf"\(pid {kept.pid}\) has not answered"):
            ask(place)
    assert down(place, force=True).pid == kept.pid
    wait_until(lambda: not sessions.members(kept.pid))
    assert up(place)[1]


def test_one_that_cannot_import_says_so(place, monkeypatch):
    monkeypatch.setattr(kept_parent, "MODULE", "no_such_module")
    with pytest.raises(LaunchFailed, match=r"died while it imported SGLang \(exit code 1\)") as caught:
        up(place)
    assert "no_such_module" in Path(caught.value.where).read_text()


def test_one_that_takes_too_long_is_ended(place, monkeypatch, tmp_path):
    (tmp_path / "slow.py").write_text("import os, time; print(os.getpid(), file=open('pid', 'w')); time.sleep(60)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(kept_parent, "MODULE", "slow")
    monkeypatch.setattr(kept_parent, "WARM", replace(WARM, ready=1.0))
    with pytest.raises(LaunchFailed, match="not ready after 1 s"):
        up(place)
    assert not sessions.members(int((tmp_path / "pid").read_text()))


async def test_a_time_to_live_that_ends_under_ones_hands(place):
    """It closes its socket between a connection and its first question: as if it had not been there."""
    place.make()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"/proc/self/fd/{os.open(place.folder, os.O_RDONLY)}/socket")
        listener.listen()
        ends = threading.Thread(target=_close_next, args=(listener,))
        ends.start()
        user = executor(place, said := [])
        await user.open()
        ends.join(5)
    assert user.socket.parent != place.folder
    assert said == []
    await user.close()


def _close_next(listener):
    listener.accept()[0].close()


def test_its_answers_are_documents(place):
    """Whatever shows a parent can be written as JSON."""
    kept, _ = up(place)
    json.dumps([dict(server) for server in kept.servers])
    assert kept.sglang is None  # tiny programs have none
