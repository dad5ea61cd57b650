"""The demo on three hosts, over real ssh: KV moves between workers of different hosts, and is right."""

import json
import os
import sys
from pathlib import Path

import pytest
from launched import Launched, run, write_topology
from ssh_lab import HOSTS


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A home that the hosts do not have, so that the model has to be sent to them."""
    return {**os.environ, "DISAGG_HOME": str(tmp_path / "home"), "PYTHONUNBUFFERED": "1"}


def test_the_demo_on_three_hosts(environment, ssh_lab, tmp_path, interrupt_all) -> None:
    ssh = {"hosts": list(HOSTS), "python": sys.executable, "config": str(ssh_lab.config)}
    port = 18000 + os.getpid() % 10 * 100
    config = write_topology(
        tmp_path,
        executor={"ssh": ssh},
        ignore={"DSG403": "the hosts are loopback addresses of one machine"},
        # The hosts of the lab share a network, so workers on different hosts need different ports all the same.
        decode=[{"ports": _ports(port + 20)}, {"ports": _ports(port + 40)}],
    )
    one = Launched(environment, tmp_path, config)
    interrupt_all.append(one)
    one.wait_for("disagg stop, or Ctrl-C", timeout=500)
    hosts = {process["name"]: process["host"] for process in one.state["processes"]}
    assert hosts == {"prefill-0": "h1", "decode-0": "h2", "decode-1": "h3", "router": "h1"}
    proof = json.loads((one.run_dir / "probe.json").read_text())
    assert [pair["ok"] for pair in proof["pairs"] + proof["parity"]] == [True] * 4

    assert run(environment, "probe").returncode == 0
    few = ("--dataset", "mini", "--questions", "4", "--max-tokens", "8")
    asked = run(environment, "eval", "gsm8k", *few, "--out", str(tmp_path / "eval"), "--json")
    report = json.loads(asked.stdout)
    assert (report["planned"], report["answered"], report["failures"]) == (4, 4, [])
    assert "fired up and ready to roll" in run(environment, "logs", "decode-1", "-n", "100000").stdout
    assert run(environment, "stop").returncode == 0
    assert one.process.wait(10) == 0
    assert ssh_lab.processes() == []


def _ports(first: int) -> dict[str, int]:
    return {"http": first, "bootstrap": first + 1, "nccl": first + 2, "dist_init": first + 3}
