"""A run in somebody's allocation whose disagg is killed: Slurm ends nothing there, so `disagg stop` has to."""

import asyncio
import json
import os
import subprocess
import sys

import pytest
import yaml
from allocation import host
from allocation import steps as executor_in
from cheap_python import cheap_python
from deployments import SMALLEST
from runs import a_run, gone, process
from waiting import wait_until

from disagg_cli.engine.commands import Command
from disagg_cli.executors import sessions
from disagg_cli.runtime import control

DISAGG = [sys.executable, "-m", "disagg_cli"]


def test_steps_of_a_killed_disagg_are_found_and_ended(held, home, tmp_path):
    topology = SMALLEST | {
        "executor": {"slurm": {"nodes": 3, "python": str(cheap_python(tmp_path))}},
        "ports": 22000,
        "router": {"port": 22500},
        "probe": {"parity": False, "timeout_s": 20},
    }
    (tmp_path / "t.yaml").write_text(yaml.safe_dump(topology))
    with (tmp_path / "out").open("wb") as out:
        launch = subprocess.Popen([*DISAGG, "launch", str(tmp_path / "t.yaml")], stdout=out, stderr=out)
    wait_until(lambda: "router  http://" in (tmp_path / "out").read_text(), 60)
    launch.kill()
    launch.wait(10)
    assert len(steps(held)) == 4

    other = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_JOB")}
    done = subprocess.run([*DISAGG, "stop", "--json"], env=other, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)["leftovers"]) == {"prefill-0", "decode-0", "decode-1", "router"}
    assert steps(held) == []
    assert held.jobs()[os.environ["SLURM_JOB_ID"]] == "RUNNING"


@pytest.mark.parametrize("begun", [False, True], ids=["an srun that waits", "a step without its srun"])
async def test_a_step_that_was_started_in_the_moment_disagg_was_killed(held, home, tmp_path, begun):
    """By its name, and by the mark of its srun; another run's is left alone."""
    run, other = (a_run(process("decode-0"), supervisor=gone()).directory for _ in range(2))
    run.write("deployment.json", {"executor": "slurm", "processes": [{"name": "decode-0", "host": held.nodes[1]}]})
    async with executor_in(held, run.path) as here, executor_in(held, other.path) as there:
        stranger = await unnoticed(there, other, "sleep 62")
        await asyncio.to_thread(wait_until, lambda: sleeping(held) == ["sleep 62"], 60)
        srun = await unnoticed(here, run, "sleep 61")
        if begun:
            await asyncio.to_thread(wait_until, lambda: "sleep 61" in sleeping(held), 60)
            sessions.kill_session(srun.pid)
        assert await asyncio.to_thread(control.stop, run) == ("decode-0",)
        assert sleeping(held) == ["sleep 62"]
        await there.executor.kill(stranger)


def sleeping(lab):
    """What runs: the record of a step may outlive it where its srun was killed (22.05)."""
    return [args for _, args in lab.processes() if args.startswith("sleep 6")]


async def unnoticed(place, run, what):
    """Start a step as a launch does that is killed before it has noted that."""
    command = Command(name="decode-0", host=host(place.lab), argv=tuple(what.split()), env={})
    return await place.executor.start(command, run.log("decode-0"))


def steps(lab):
    return lab.run("squeue", "-h", "-s", "-o", "%j").split()
