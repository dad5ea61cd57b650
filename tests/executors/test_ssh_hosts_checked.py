"""What a look at the hosts finds before the first process: each finding names its host, and nothing is started."""

import json
import sys
import time

import pytest
import yaml
from launched import run
from ssh_drills import ON_GPUS, gpus
from ssh_lab import HOSTS

from disagg_cli.runtime.reservation import reserved
from disagg_cli.topology.synthetic import SyntheticModel


def checked(environment, config):
    """The findings about the hosts: code and message of each."""
    document = json.loads(run(environment, "check", "--hosts", "--json", str(config)).stdout)
    return [(one["code"], one["message"]) for one in document["topologies"][0]["findings"]]


def refused(environment, config):
    """What a launch says that does not begin."""
    done = run(environment, "launch", str(config))
    assert done.returncode == 3
    return done.stderr


def test_hosts_are_checked_first_and_all_at_once(topology, environment, ssh_lab, home):
    """Each finding names its host, and what ssh said; nothing is started where one of them is not well."""
    with ssh_lab.config.open("a") as config:
        config.write("Host h8\n  HostName 127.0.0.8\n  Port 1\n")
    config = topology(ssh={"hosts": ["h1", "h8", "nobody.invalid"]})
    found = [message.split()[0] for code, message in checked(environment, config) if code == "DSG411"]
    assert found == ["h8", "nobody.invalid"]
    said = refused(environment, config)
    assert "DSG411 h8 cannot be used: ssh: connect to host 127.0.0.8 port 1: Connection refused" in said
    assert "DSG411 nobody.invalid cannot be used: ssh: Could not resolve hostname nobody.invalid" in said
    assert "DSG411 h1" not in said
    assert "see that the host is up, and its sshd at the port that `ssh -G h8` shows" in said
    assert not (home / "runs").exists()


def test_hosts_that_only_ssh_reaches(topology, environment, behind_a_jump_host, home):
    """As behind a jump host: their servers would never be seen to be healthy."""
    config = topology(ssh={"python": str(behind_a_jump_host(sys.executable))})
    found = [message.partition(",")[0] for code, message in checked(environment, config) if code == "DSG419"]
    assert found == [f"ssh reaches {host}" for host in HOSTS]
    said = refused(environment, config)
    assert "DSG419 ssh reaches h2, and nothing else from here reaches 127.0.0.3" in said
    assert "run disagg on a machine of the hosts' own network" in said
    assert not (home / "runs").exists()


def test_a_python_that_is_not_there(topology, environment):
    said = refused(environment, topology(ssh={"hosts": ["h1"], "python": "/no/such/python"}))
    assert "DSG411 h1 cannot be used:" in said
    assert "executor.ssh.python" in said


def test_a_model_that_is_not_mounted_on_one_host(topology, environment, ssh_lab, tmp_path):
    """The folder is there, and empty."""
    if not ssh_lab.isolated:
        pytest.skip("hosts share every folder where namespaces are not allowed")
    (model := tmp_path / "model").mkdir()
    (model / "config.json").write_text(json.dumps(SyntheticModel().config()))
    ssh_lab.run("h2", f"mount -t tmpfs tmpfs {model}")
    try:
        found = checked(environment, topology(model=str(model)))
        assert [message for code, message in found if code == "DSG417"] == [f"h2 does not have {model}/config.json"]
    finally:
        ssh_lab.run("h2", f"umount {model}")


def test_a_port_that_is_taken_on_another_host(topology, environment, ssh_lab):
    config = topology()
    port = yaml.safe_load(config.read_text())["ports"]
    listen = f"import socket, time; s = socket.create_server(('127.0.0.3', {port})); time.sleep(60)"
    pid = ssh_lab.run("h2", f'python3 -c "{listen}" >/dev/null 2>&1 </dev/null & echo $!').stdout
    try:
        time.sleep(0.5)
        said = refused(environment, config)
        assert f"DSG415 ports that are taken on h2 (127.0.0.3): {port} (decode-0 http)" in said
    finally:
        ssh_lab.run("h2", f"kill {pid}")


def test_ports_that_another_launch_has(topology, environment):
    """To look is to listen there for a moment, in the way of what it is about to start."""
    config = topology()
    port = f"h2:{yaml.safe_load(config.read_text())['ports']}"
    with reserved([port]):
        found = checked(environment, config)
    assert ("DSG415", f"hosts are not looked at: another launch is starting, or serving, on port {port}") in found


def test_hosts_with_too_few_gpus(topology, environment, python_there, tmp_path):
    """One has half of them, and one has none."""
    python = python_there(gpus(tmp_path, h1=4, h2=2, h3=0))
    found = checked(environment, topology(**ON_GPUS, ssh={"python": python}))
    assert [message for code, message in found if code == "DSG416"] == [
        "h2 has 2 GPU(s), and workers are placed on GPUs up to number 3",
        "h3 has 0 GPU(s), and workers are placed on GPUs up to number 3",
    ]
