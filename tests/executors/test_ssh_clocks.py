"""Clocks that are set by a day under a launch over ssh: nothing is taken for dead, and what is dead is noticed.

Elsewhere a clock may be set by hand, by NTP, or as a virtual machine wakes up.
"""

import asyncio
import json
import sys
import time

import pytest
from cheap_python import cheap_python
from launched import run
from places import FOREVER, ssh_place
from set_clock import Clock
from ssh_drills import ALL, ends_with_a_death, events, killed, nothing_left, say, when, worker
from waiting import wait_until

DAY = 86400


@pytest.fixture
def jumped(launch, topology, ssh_lab, environment, python_there, tmp_path):
    """A run that has seen a clock, a host's or disagg's, jump as its workers started, and jump back once it served."""

    def start(whose, seconds):
        if whose == "disagg":
            clock = Clock(sys.executable, tmp_path)
            here, there = {"python": clock.program}, {}
        else:
            clock = Clock(cheap_python(tmp_path), tmp_path)
            here, there = {}, {"python": python_there(f'[ $LAB_HOST != {whose} ] || exec "{clock.program}" "$@"')}
        slow = {"workers": 2, "env": {"CHEAP_START_S": "2"}}
        one = launch(topology(ssh=there, decode=slow), **here, serving=False)
        one.wait_for("decode-1 starting")
        clock.set(seconds)
        one.wait_for(" s  serving")
        pids = {name: worker(one, name)["pid"] for name in ALL}
        status = json.loads(run(environment, "status", "--json").stdout)
        assert (status["phase"], status["supervised"]) == ("serving", True)
        assert all(0 <= process["age_s"] < 60 for process in (status, *status["processes"]))
        assert ssh_lab.cut("h2") >= 1
        wait_until(lambda: when(one, "h2 is back"), within=30)
        clock.set(0)
        say(one, "decode-0", "afterwards")
        assert all(0 <= event["after_s"] < 60 for event in events(one) if event["kind"] == "process")
        assert any(abs(event["at"] - time.time()) > DAY / 2 for event in events(one)) is (whose == "disagg")
        assert {name: worker(one, name)["pid"] for name in ALL} == pids
        assert one.state["phase"] == "serving"
        return one

    return start


@pytest.mark.parametrize("whose", ["h2", "disagg"])
def test_a_death_after_a_clock_has_jumped(jumped, ssh_lab, whose):
    one = jumped(whose, DAY)
    at = killed(one, "decode-0", ssh_lab)
    ends_with_a_death(one, "decode-0", at, ssh_lab)


@pytest.mark.parametrize("whose", ["h2", "disagg"])
def test_a_stop_after_a_clock_has_jumped(jumped, ssh_lab, environment, whose):
    """Of a disagg that was killed."""
    one = jumped(whose, -DAY)
    one.process.kill()
    one.process.wait(5)
    stopped = run(environment, "stop", "--json")
    assert set(json.loads(stopped.stdout)["leftovers"]) == ALL
    nothing_left(ssh_lab)


async def test_a_worker_on_a_host_whose_clock_is_set_back(ssh_lab, tmp_path):
    """When somebody last asked after it is then in its keeper's future."""
    async with ssh_place(tmp_path, ssh_lab, lease=1.0) as here:
        handle = await here.start(FOREVER)
        (touch,) = (ssh_lab.state / "disagg/remote").glob(f"{tmp_path.name}/*/touch")
        ahead = f"for n in $(seq 150); do touch -d tomorrow {touch}; sleep 0.01; done"
        assert (await asyncio.to_thread(ssh_lab.run, "h1", ahead)).returncode == 0
        await asyncio.sleep(3)
        assert await here.executor.poll(handle) is None
