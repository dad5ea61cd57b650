"""What stands between disagg and its hosts, and is the user's own OpenSSH's to know: jump hosts, agents."""

import os
import signal
import subprocess

import psutil
import pytest
from ssh_drills import ended, nothing_left, when
from ssh_lab import HOSTS
from waiting import wait_until


@pytest.fixture
def config(ssh_lab, tmp_path):
    """An ssh_config by which h2 and h3 are behind h1, and the key is nowhere but in an agent."""
    (key := tmp_path / "key.pub").write_text((ssh_lab.folder / "id.pub").read_text())  # which of the agent's keys
    key.chmod(0o600)
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", socket := tmp_path / "agent"], stdout=subprocess.DEVNULL)
    wait_until(socket.exists)
    env = os.environ | {"SSH_AUTH_SOCK": str(socket)}
    subprocess.run(["ssh-add", "-q", ssh_lab.folder / "id"], env=env, check=True)
    theirs = [line for line in ssh_lab.config.read_text().splitlines() if " Identity" not in line]
    config = tmp_path / "ssh_config"
    ours = [f"IdentityAgent {socket}", f"IdentityFile {key}", "Host h2 h3", "ProxyJump h1"]
    config.write_text("\n".join([*ours, *theirs, ""]))
    yield config
    agent.terminate()
    agent.wait(10)


def connected(lab):
    """Who is connected to an sshd: its address, and the pid."""
    return {(c.raddr.ip, c.pid) for c in psutil.net_connections("tcp4") if c.raddr and c.raddr.port == lab.port}


def test_a_jump_host_and_a_key_that_only_an_agent_has(launch, topology, ssh_lab, config):
    """Where the jump host's connections are cut, all hosts are found again."""
    without_it = ["ssh", "-F", config, "-o", "IdentityAgent=none", "h1", "true"]
    assert "Permission denied" in subprocess.run(without_it, capture_output=True, text=True).stderr
    before = connected(ssh_lab)  # of a disagg that another test has killed
    one = launch(topology(ssh={"config": str(config)}))
    ways = {(address, psutil.Process(pid).name()) for address, pid in connected(ssh_lab) - before if pid}
    assert ways == {(HOSTS["h1"], "ssh"), (HOSTS["h2"], "sshd"), (HOSTS["h3"], "sshd")}
    assert ssh_lab.cut("h1") >= 3
    wait_until(lambda: all(when(one, f"{host} is back") for host in HOSTS), within=30)
    assert one.state["phase"] == "serving"
    one.process.send_signal(signal.SIGTERM)
    assert ended(one)[0] == 0
    nothing_left(ssh_lab)
