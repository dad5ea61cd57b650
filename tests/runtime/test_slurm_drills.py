"""What goes wrong on a real Slurm cluster: noticed within 5 s, named, nothing left on any node, the right exit code.

tests/runtime/test_slurm_runs.py has what Slurm itself does to a run, test_slurm_interrupts.py what its user does.
"""

import json
import subprocess
import time
import urllib.request

import pytest
from set_clock import Clock
from slurm_cluster import DISAGG
from slurm_lab import GPUS
from waiting import wait_until

from disagg_cli.runtime import disk

NOTICED_S = 5.0
GANG = {"policy": "gang", "times": 1, "backoff_s": 0}
SLOW = {"env": {"CHEAP_START_S": "100"}}
ALLOCATION = ("salloc", "--quiet", "-N3", "--exclusive", "--mem=0", f"--gres=gpu:{GPUS}")


@pytest.mark.parametrize(
    ("name", "phase"),
    [("prefill-0", "serving"), ("decode-1", "serving"), ("router", "serving"), ("decode-0", "starting")],
)
def test_a_process_is_killed(cluster, name, phase):
    starts = phase == "starting"
    launch = cluster.launch(cluster.topology(engine=SLOW if starts else {}))
    cluster.said(f"{name} starting" if starts else "router  http://")
    at = cluster.kill(name)
    assert launch.wait(60) == 4
    cluster.said(f"{name} died: killed by SIGKILL", 1)
    assert failed(cluster, name) - at < NOTICED_S
    cluster.ended()


def failed(cluster, name):
    """When a death was on record."""
    (at,) = [e["at"] for e in cluster.events("process") if (e["process"], e["phase"]) == (name, "failed")]
    return at


def crash(cluster):
    """Pull the plug of the last node, and see that it is named in time."""
    node = cluster.lab.nodes[2]
    at = time.monotonic()
    cluster.lab.crash(node)
    cluster.said(f"{node} ({cluster.lab.address(node)}) has answered no connection", 25)
    assert time.monotonic() - at < NOTICED_S + 2  # at most 4.5 s by design, and what busy cores add
    return node


def test_a_node_crashes_while_workers_start(cluster):
    """disagg names it at once; that it will not come back is for Slurm to say."""
    launch = cluster.launch(cluster.topology(engine=SLOW))
    cluster.said("decode-1 starting")
    time.sleep(2)  # it has been looked at
    node = crash(cluster)
    assert launch.wait(100) == 4
    assert f"node {node} has failed" in cluster.state["reason"]
    cluster.ended()


def test_all_start_again_when_one_dies(cluster):
    """`restart: gang`, in steps of other names: those of the first time may still be on record."""
    launch = cluster.launch(cluster.topology(restart=GANG))
    cluster.said("router  http://")
    before = steps(cluster)
    cluster.kill("decode-1")
    wait_until(lambda: [e["phase"] for e in cluster.events("run")].count("serving") == 2, 60)
    assert not before & steps(cluster)
    assert {(one["phase"], one["starts"]) for one in cluster.state["processes"]} == {("proven", 2)}
    cluster.kill("prefill-0")
    assert launch.wait(60) == 4
    assert cluster.events("restart")[-1]["text"] == "no more restarts: 1 within 3600 s"
    cluster.ended()


def test_a_node_crashes_before_all_start_again(cluster):
    """It is named at once, and no start is spent on it."""
    launch = cluster.launch(cluster.topology(restart=GANG | {"backoff_s": 8}))
    cluster.said("router  http://")
    time.sleep(2)  # it has been looked at
    cluster.kill("decode-0")
    cluster.said("decode-1 stopped")  # else it may be its end that is waited for
    node = crash(cluster)
    assert launch.wait(100) == 4
    assert node in cluster.ended()["reason"]
    assert [one["starts"] for one in cluster.state["processes"]] == [1] * 4


def test_a_job_that_slurm_suspends(cluster):
    """disagg in it sees and hears nothing: that is said, and nobody waits for it."""
    launch = cluster.launch(cluster.topology())
    cluster.said("router  http://")
    cluster.lab.run("scontrol", "suspend", cluster.number)
    assert f"scontrol resume {cluster.number}" in cluster.disagg("status").stdout
    began = time.monotonic()
    assert cluster.disagg("stop").returncode == 0
    assert time.monotonic() - began < 30
    launch.wait(60)
    cluster.ended()


def steps(cluster):
    """The names of the run's steps."""
    return {line for line in cluster.lab.run("squeue", "-h", "-s", "-o", "%j").split() if "@" in line}


def test_two_launches_race_in_one_allocation(cluster):
    """One of them serves. The other one says why it does not, and leaves it alone."""
    config = cluster.topology()
    both = f"{' '.join(DISAGG)} launch {config} > $0/one 2>&1 & {' '.join(DISAGG)} launch {config} > $0/two 2>&1 & "
    both += "wait -n; echo $? > $0/lost; wait -n; echo $? > $0/won"
    shell = subprocess.Popen([*ALLOCATION, "bash", "-c", both, str(cluster.folder)])
    wait_until((cluster.folder / "lost").exists, 60)
    said = {name: (cluster.folder / name) for name in ("one", "two")}
    wait_until(lambda: any("router  http://" in file.read_text() for file in said.values()), 60)
    (loser,) = [file for file in said.values() if "router  http://" not in file.read_text()]
    assert (cluster.folder / "lost").read_text() == "3\n", loser.read_text()
    assert "another launch is starting, or serving" in loser.read_text()
    assert {one["phase"] for one in cluster.state["processes"]} == {"proven"}
    assert cluster.disagg("stop").returncode == 0
    assert shell.wait(60) == 0
    assert (cluster.folder / "won").read_text() == "0\n"
    cluster.ended()


def test_a_full_disk(cluster, monkeypatch):
    """Named, on every terminal; the run goes on, and deaths are still noticed."""
    monkeypatch.setenv("DISAGG_HOME", str(cluster.lab.small_disk))
    cluster.home = cluster.lab.small_disk
    launch = cluster.launch(cluster.topology())
    cluster.said("router  http://")
    at = time.monotonic()
    urllib.request.urlopen(f"{cluster.process('decode-0')['url']}/flood/8", timeout=20).read()
    assert disk.room(cluster.home) < disk.LEAST
    cluster.said("disk full: no room for record and logs", NOTICED_S - (time.monotonic() - at))
    assert "disk full" in cluster.disagg("status").stdout
    assert launch.poll() is None
    cluster.kill("decode-1")
    assert launch.wait(60) == 4
    cluster.said("decode-1 died: killed by SIGKILL", 1)
    cluster.nothing_left()


@pytest.mark.parametrize("seconds", [86400, -86400], ids=["a day forward", "a day back"])
def test_the_clock_jumps(cluster, seconds):
    """Of the node on which disagg runs in its job: no wait ends early, nobody is taken for dead, and who is, is."""
    clock = Clock(cluster.python, cluster.folder)
    launch = cluster.launch(cluster.topology(slurm={"python": str(clock.program)}))
    cluster.said("decode-1 starting")
    clock.set(seconds)
    cluster.said("router  http://")
    assert json.loads(cluster.disagg("status", "--json").stdout)["supervised"]
    clock.set(0)
    cluster.kill("decode-1")
    began = time.monotonic()
    wait_until(lambda: cluster.state["crashes"], 30)
    assert time.monotonic() - began < NOTICED_S
    assert launch.wait(60) == 4
    took = [event["after_s"] for event in cluster.events("process")]
    assert all(0 <= seconds < 60 for seconds in took)
    cluster.ended()


def test_a_run_whose_disagg_was_killed_is_cleaned_up(cluster):
    """In an allocation of somebody's: Slurm ends nothing there."""
    shell = cluster.launch_in(*ALLOCATION)
    cluster.said("router  http://")
    subprocess.run(["kill", "-KILL", str(cluster.state["pid"])], check=True)
    shell.wait(60)
    (listed,) = json.loads(cluster.disagg("ps", "--json").stdout)["runs"]
    assert (listed["phase"], listed["stale"]) == ("lost", True)
    cleaned = json.loads(cluster.disagg("ps", "--clean", "--json").stdout)
    assert (cleaned["runs"], len(cleaned["cleaned"])) == ([], 1)
    cluster.nothing_left()
