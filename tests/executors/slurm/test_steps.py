"""Steps of a real Slurm allocation, beyond what every executor promises (tests/executors/test_contract.py)."""

import asyncio
import contextlib
import os
import signal
import sys

import psutil
import pytest
from allocation import host, steps
from waiting import until

from disagg_cli.errors import LaunchFailed
from disagg_cli.executors.protocol import UNKNOWN_EXIT, Handle, Site
from disagg_cli.executors.slurm import client
from disagg_cli.executors.slurm import steps as module
from disagg_cli.executors.slurm.steps import SlurmExecutor

FOREVER = "import time; print('ready', flush=True); time.sleep(300)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {FOREVER}"
POLITE = f"import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(9)); {FOREVER}"


def said(handle, word="ready"):
    return lambda: word in handle.log.read_text()


async def ended(place, handle):
    """The exit code, once there is one."""
    return await settled(lambda: place.executor.poll(handle), lambda code: code is not None)


async def settled(ask, enough):
    """The answer, once it is as it has to be."""
    async with asyncio.timeout(60):
        while True:
            if enough(answer := await ask()):
                return answer
            await asyncio.sleep(0.05)


async def gone(place, handle):
    """Kill until it has gone: all of it, and in bounded time."""
    async with asyncio.timeout(60):
        await place.executor.kill(handle)
        while await place.executor.survivors(handle):
            await place.executor.kill(handle)
            await asyncio.sleep(0.05)


def on(lab, number, word):
    """Whatever runs on a node with this word on its command line, but for srun."""
    return [args for node, args in lab.processes() if node == lab.nodes[number] and word in args]


async def test_a_process_runs_on_its_node(held, tmp_path):
    async with steps(held, tmp_path) as here:
        handle = await here.start(FOREVER, number=2)
        assert await here.executor.survivors(handle) == (handle.pid,)
        await until(said(handle), 30)
        assert await here.executor.poll(handle) is None
        assert handle.host == held.nodes[2]
        assert on(held, 2, "sleep(300)")
        assert not on(held, 1, "sleep(300)")


async def test_the_environment_reaches_the_step(held, tmp_path, monkeypatch):
    monkeypatch.setenv("INHERITED", "a")
    monkeypatch.setenv("BOTH", "a")
    async with steps(held, tmp_path) as here:
        show = "import os; print(*(os.environ[name] for name in ('INHERITED', 'BOTH', 'GIVEN')))"
        handle = await here.start(show, BOTH="b", GIVEN="c d")
        await ended(here, handle)
        assert "a b c d\n" in handle.log.read_text()


async def test_workers_of_a_node_start_side_by_side_and_see_their_own_gpus(held, tmp_path):
    """Slurm itself would show each step all four."""
    async with steps(held, tmp_path) as here:
        show = f"import os; print(os.environ['CUDA_VISIBLE_DEVICES']); {FOREVER}"
        handles = [await here.start(show, CUDA_VISIBLE_DEVICES=gpus) for gpus in ("0,1", "2,3")]
        for handle, gpus in zip(handles, ("0,1\n", "2,3\n"), strict=True):
            await until(said(handle), 30)
            assert gpus in handle.log.read_text()


async def test_terminate_reaches_one_step_of_several(held, tmp_path):
    async with steps(held, tmp_path) as here:
        one, other = await here.start(POLITE), await here.start(POLITE)
        await until(said(one), 30)
        await until(said(other), 30)
        await here.executor.terminate(one)
        assert await ended(here, one) == 9
        assert await here.executor.poll(other) is None


async def test_kill_reaches_children(held, tmp_path):
    async with steps(held, tmp_path) as here:
        child = "import subprocess; subprocess.Popen(['sleep', '311'], start_new_session=True); "
        handle = await here.start(child + FOREVER)
        await until(said(handle), 30)
        assert on(held, 1, "sleep 311")
        await here.executor.kill(handle)
        assert await ended(here, handle) == -signal.SIGKILL
        await until(lambda: not on(held, 1, "sleep 311"), 30)


async def test_a_step_that_has_not_begun_can_be_killed(held, tmp_path):
    async with steps(held, tmp_path) as here:
        handle = await here.start(FOREVER)
        await gone(here, handle)
        assert await here.executor.poll(handle) is not None
        await until(lambda: not on(held, 1, "sleep(300)"), 30)


async def test_a_step_of_which_only_the_record_is_left_is_gone(held, tmp_path):
    """As Slurm leaves them where an srun is killed while it is answered: for as long as the job lasts."""
    async with steps(held, tmp_path) as here:
        handle = await on_record_only(here)
        assert await here.executor.survivors(handle) == (handle.pid,)
        await gone(here, handle)
        assert handle.token.partition("/")[2] in listed(held)


async def test_a_step_that_is_there_is_no_mere_record(held, tmp_path):
    async with steps(held, tmp_path) as here:
        handle = await here.start(FOREVER)
        await until(said(handle), 30)
        job, _, name = handle.token.partition("/")
        assert client.steps()[job, name] in client.steps_on(handle.host, job)
        assert client.steps_on(handle.host, "4242") == frozenset()


async def on_record_only(here):
    """The handle of a step that is listed, and has neither an srun nor a process."""

    async def cut_off(after):
        handle = await here.start(FOREVER)
        await asyncio.sleep(after)
        os.killpg(handle.pid, signal.SIGKILL)
        return handle

    for _ in range(5):
        handles = await asyncio.gather(*(cut_off(0.01 * n) for n in range(15)))
        await asyncio.sleep(2)
        for step in listed(here.lab).values():
            with contextlib.suppress(LaunchFailed):
                client.ask("scancel", step)
        await until(lambda: not on(here.lab, 1, "sleep(300)"), 60)
        await asyncio.sleep(3)  # what ended just now is listed for a moment
        if left := [handle for handle in handles if handle.token.partition("/")[2] in listed(here.lab)]:
            return left[0]
    pytest.skip("Slurm has forgotten every step whose srun was killed")


def listed(lab):
    """Steps by name."""
    return {name: step for step, name in map(str.split, lab.run("squeue", "-h", "-s", "-o", "%i %j").splitlines())}


@pytest.fixture
def silence(tmp_path, monkeypatch):
    """Called: squeue finds no controller from now on. Returned is how often it has been asked."""

    def begin():
        (fake := tmp_path / "bin" / "squeue").parent.mkdir()
        fake.write_text(f"#!/bin/sh\necho >> {fake}.asked; sleep 1; echo 'Unable to contact controller' >&2; exit 1\n")
        fake.chmod(0o755)
        monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")
        return lambda: len(fake.with_suffix(".asked").read_text())

    return begin


async def test_where_slurm_does_not_answer_srun_is_asked(held, tmp_path, silence):
    """It kills its step then, which is the most that is to be had; and nobody waits for an answer twice."""
    async with steps(held, tmp_path) as here:
        handles = [await here.start(POLITE) for _ in range(3)]
        for handle in handles:
            await until(said(handle), 30)
        questions = silence()
        await asyncio.gather(*map(here.executor.terminate, handles))
        assert [await ended(here, handle) for handle in handles] == [-signal.SIGKILL] * 3
        assert questions() == 1


async def test_a_step_ends_as_soon_as_slurm_answers_again(held, tmp_path, silence, monkeypatch):
    """Its srun sees to that, and so is not killed meanwhile."""
    monkeypatch.setattr(module, "PATIENCE_S", 0.0)
    async with steps(held, tmp_path) as here:
        handle = await here.start(STUBBORN)
        await until(said(handle), 30)
        silence()
        controller = int((held.folder / "slurmctld.pid").read_text())
        os.kill(controller, signal.SIGSTOP)
        try:
            for _ in range(3):
                await here.executor.kill(handle)
                await asyncio.sleep(0.2)
            assert await here.executor.survivors(handle) == (handle.pid,)
        finally:
            os.kill(controller, signal.SIGCONT)
        assert await ended(here, handle) == -signal.SIGKILL
        await until(lambda: not on(held, 1, "sleep(300)"), 30)


async def test_an_executor_that_did_not_start_it_finds_it(held, tmp_path, monkeypatch):
    """So does `disagg stop` on a login node: it knows a handle, and is in no allocation."""
    async with steps(held, tmp_path) as here:
        handle = await here.start(FOREVER)
        await until(said(handle), 30)
        monkeypatch.delenv("SLURM_JOB_ID")
        other = SlurmExecutor(Site())
        await other.open()
        elsewhere = Handle(name="program", host=handle.host, pid=2**22, born=1.0, log=handle.log, token=handle.token)
        assert await other.poll(elsewhere) is None
        assert await other.survivors(elsewhere) == (elsewhere.pid,)
        await other.kill(elsewhere)
        assert await ended(here, handle) == -signal.SIGKILL
        await settled(lambda: other.survivors(elsewhere), lambda left: not left)
        assert await other.poll(elsewhere) == UNKNOWN_EXIT


async def test_a_step_killed_from_elsewhere_is_seen(held, tmp_path):
    async with steps(held, tmp_path) as here:
        handle = await here.start(FOREVER)
        await until(said(handle), 30)
        (pid,) = held.on(held.nodes[1], "pgrep", "-f", "^[^ ]*python[^ ]* -S -c import time").split()
        held.on(held.nodes[1], "kill", "-KILL", pid)
        assert await ended(here, handle) == -signal.SIGKILL


async def test_the_same_name_twice_is_two_steps(held, tmp_path):
    async with steps(held, tmp_path) as here:
        first, second = await here.start(FOREVER), await here.start(FOREVER)
        assert first.token != second.token
        await until(said(second), 30)
        await here.executor.kill(second)
        assert await ended(here, second) == -signal.SIGKILL
        assert await here.executor.poll(first) is None


async def test_a_look_at_nodes(held, tmp_path):
    """A port that is taken on one node is free on another, and none of them has another's address."""
    first, second = host(held, 0), host(held, 1)
    listen = f"import socket, time; s = socket.create_server(('', 21000)); {FOREVER}"
    async with steps(held, tmp_path) as here:
        await until(said(await here.start(listen, number=1)), 30)
        wanted = {first: {21000: "x"}, second: {21000: "x", 21001: "y"}}
        found = await here.executor.look([first, second], wanted, [str(tmp_path), "/no/such"])
    assert [facts.problem for facts in found] == ["", ""]
    assert found[0].taken == {first.address: ()}
    assert found[1].taken == {second.address: (21000,)}
    assert found[0].missing == ("/no/such",)
    assert (found[0].python, found[0].foreign) == (sys.executable, ())
    assert found[0].package.endswith("disagg_cli")


async def test_a_look_for_an_address_of_another_node(held, tmp_path):
    first, second = host(held, 0), host(held, 1)
    moved = type(first)(name=first.name, address=second.address, gpus=4, local=False)
    async with steps(held, tmp_path) as here:
        (found,) = await here.executor.look([moved], {moved: {21000: "x"}}, [])
    assert found.foreign == (second.address,)


async def test_a_look_that_fails_says_why(held, tmp_path):
    async with steps(held, tmp_path, {"python": "/no/such/python"}) as here:
        (found,) = await here.executor.look([host(held)], {}, [])
    assert "/no/such/python" in found.problem
    assert held.nodes[1] in found.fix


async def test_a_look_that_is_interrupted(held, tmp_path, monkeypatch):
    """It is over once all of its sruns are, also one that is deaf to SIGTERM."""
    (srun := tmp_path / "srun").write_text(
        f"#!/bin/sh\ncase $* in *nodelist={held.nodes[1]}*) trap '' TERM;; esac\n"
        f"touch {tmp_path}/$$.asked; while :; do sleep 0.1; done\n"
    )
    srun.chmod(0o755)
    async with steps(held, tmp_path) as here:
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        look = asyncio.create_task(here.executor.look([host(held, 0), host(held, 1)], {}, []))
        await until(lambda: len([*tmp_path.glob("*.asked")]) == 2, 60)
        look.cancel()
        await asyncio.wait([look])
    assert not [one for one in psutil.process_iter(["cmdline"]) if str(srun) in (one.info["cmdline"] or ())]


async def test_a_folder_that_is_not_shared(held, tmp_path):
    """/dev/shm is each node's own."""
    async with steps(held, tmp_path) as here:
        await here.executor.provide([host(held)], tmp_path)
        with pytest.raises(LaunchFailed, match=r"is not on s\d+n2"):
            await here.executor.provide([host(held)], tmp_path / "nowhere")


async def test_a_host_outside_the_allocation(held, tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_NODELIST", held.nodes[0])
    monkeypatch.setenv("SLURM_JOB_CPUS_PER_NODE", "16")
    async with steps(held, tmp_path) as here:
        with pytest.raises(LaunchFailed, match="is no node of this allocation"):
            await here.start("pass", number=1)
