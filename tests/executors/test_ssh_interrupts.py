"""Launches over ssh that are interrupted, or meet another one: the exit code is right, and nothing is left anywhere."""

import shutil
import signal
from pathlib import Path

import pytest
from launched import run
from ssh_drills import ended, nothing_left, worker
from waiting import wait_until


@pytest.mark.parametrize(
    ("moment", "signum"),
    [
        ("starting: its hosts", signal.SIGHUP),
        ("prefill-0 starting", signal.SIGTERM),
        ("decode-0 healthy", signal.SIGTERM),
    ],
)
def test_interrupted_before_it_serves(launch, topology, ssh_lab, moment, signum):
    one = launch(topology(), serving=False)
    one.wait_for(moment)
    one.process.send_signal(signum)
    assert ended(one)[0] == 130
    nothing_left(ssh_lab)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_interrupted_before_there_is_a_run(launch, topology, ssh_lab, python_there, home, signum):
    """While hosts are looked at for the first time."""
    one = launch(topology(ssh={"python": python_there("sleep 3")}), serving=False)
    wait_until(ssh_lab.processes)
    one.process.send_signal(signum)
    code, output = ended(one)
    assert (code, f"interrupted by {signum.name}" in output) == (130, True)
    assert not (home / "runs").exists()
    nothing_left(ssh_lab)


def test_interrupted_twice(launch, topology, ssh_lab):
    """The second one skips the time of grace."""
    one = launch(topology())
    one.process.send_signal(signal.SIGINT)
    one.process.send_signal(signal.SIGINT)
    assert ended(one)[0] in (0, 130)
    nothing_left(ssh_lab)


def test_interrupted_twice_while_a_host_hangs(launch, topology, ssh_lab, environment):
    """The others are seen to end meanwhile; the second one stops waiting for the host."""
    one = launch(topology())
    ssh_lab.freeze("h3")
    try:
        one.process.send_signal(signal.SIGINT)
        wait_until(lambda: {worker(one, name)["phase"] for name in ("prefill-0", "decode-0", "router")} == {"stopped"})
        one.process.send_signal(signal.SIGINT)
        code, output = ended(one, within=12)
        assert (code, "nobody knows whether it still runs" in output, "decode-1" in output[-200:]) == (4, True, True)
    finally:
        ssh_lab.thaw("h3")
    assert run(environment, "stop", "--run", one.run_dir.name).returncode == 0
    nothing_left(ssh_lab)


@pytest.mark.parametrize("moment", ["at the same time", "once the first one serves"])
def test_two_launches_for_the_same_ports(launch, topology, ssh_lab, moment):
    """Exactly one of them serves; the other says why it does not, and leaves it alone."""
    config = topology()
    other = shutil.copy(config, config.with_name("other.yaml"))
    launches = [launch(config, serving=moment != "at the same time"), launch(Path(other), serving=False)]
    wait_until(lambda: any(" s  serving" in one.output.read_text() for one in launches), within=60)
    winner, loser = sorted(launches, key=lambda one: " s  serving" not in one.output.read_text())
    code, output = ended(loser)
    assert (code, "another launch is starting, or serving, on port h" in output) == (3, True)
    assert {process["phase"] for process in winner.state["processes"]} == {"proven"}
    winner.process.send_signal(signal.SIGTERM)
    assert ended(winner)[0] == 0
    nothing_left(ssh_lab)
