"""Launches over ssh that are interrupted, or meet another one: the exit code is right, and nothing is left anywhere."""

import signal

import pytest
from launched import run
from ssh_drills import ended, nothing_left, worker
from waiting import wait_until


@pytest.mark.parametrize("moment", ["prefill-0 starting", "decode-0 healthy"])
def test_interrupted_before_it_serves(launch, topology, ssh_lab, moment):
    one = launch(topology(), serving=False)
    one.wait_for(moment)
    one.process.send_signal(signal.SIGTERM)
    assert ended(one)[0] == 130
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


def test_two_launches_for_the_same_ports(launch, topology, ssh_lab):
    config = topology()
    one = launch(config)
    other = launch(config, serving=False)
    code, output = ended(other)
    assert code == 3
    assert "another launch is starting, or serving" in output
    assert one.process.poll() is None
