"""`disagg launch` on a Slurm that knows NVLink domains (24.11, topology/block): two of three nodes each."""

import json
import re
import tempfile
import time
from pathlib import Path

import debian
import pytest
import slurm_newer
from slurm_cluster import Cluster
from slurm_lab import GPUS, NoLab, lab
from waiting import wait_until

BLOCK = 3
NOTICED_S = 5.0
THREE = {"platform": "gb200-nvl72", "model": "Qwen/Qwen3-32B", "prefill": {"tp": 8}, "decode": {"tp": 4}}
"""On nodes of four GPUs: a prefill worker on two, a decode worker on one."""
FOUR = THREE | {"decode": {"tp": 4, "workers": 2}}


@pytest.fixture(scope="module")
def racks():
    """The lab."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            programs = slurm_newer.unpacked(Path(folder))
            with lab(2 * BLOCK, programs=programs, block=BLOCK) as one:
                yield one
    except (NoLab, debian.NotInstalled) as why:
        pytest.skip(f"no Slurm with blocks: {why}")


@pytest.fixture
def cluster(racks, home, tmp_path, monkeypatch):
    """The same with topologies and launches of a test, and with what its nodes say of their GPUs."""
    (smi := tmp_path / "bin" / "nvidia-smi").parent.mkdir()
    smi.write_text("#!/bin/sh\nfor gpu in 0 1 2 3; do echo GPU $gpu: NVIDIA GB200; done\n")
    smi.chmod(0o755)
    monkeypatch.setenv("SLURM_CONF", str(racks.conf))
    monkeypatch.setenv("PATH", f"{smi.parent}:{racks.env['PATH']}")
    yield Cluster(racks, home, tmp_path)
    racks.empty()


def hold(cluster, *numbers):
    """Give nodes to other jobs: their numbers."""
    jobs = []
    for node in (cluster.lab.nodes[number - 1] for number in numbers):
        asked = ("--parsable", "-w", node, "--exclusive", "-o", "/dev/null", "--wrap", "sleep 300")
        jobs.append(cluster.lab.run("sbatch", *asked).strip())
    wait_until(lambda: all(cluster.lab.jobs()[job] == "RUNNING" for job in jobs))
    return jobs


def in_blocks(cluster, nodes):
    """Which of these nodes are in each block, as Slurm tells of blocks: by their numbers, from 1 on."""
    shown = cluster.lab.run("scontrol", "show", "topology")
    blocks = [found.split(",") for found in re.findall(r"BlockName=.* Nodes=(\S+)", shown)]
    return [{cluster.lab.nodes.index(node) + 1 for node in block if node in nodes} for block in blocks]


def taken(cluster, *names):
    """The same of the nodes of the run, or of these processes of it."""
    there = [one["host"] for one in cluster.state["processes"] if one["name"] in names or not names]
    return in_blocks(cluster, there)


def unasked(cluster, count):
    """The same of as many nodes as Slurm gives a job that asks for no segment."""
    return in_blocks(cluster, cluster.lab.run("srun", "--exclusive", f"-N{count}", "hostname").split())


def test_a_topology_waits_for_one_block(cluster):
    """Two nodes of each are free, and then all of one. Then a worker's second half dies."""
    _, second = hold(cluster, 1, 4)
    launch = cluster.launch(cluster.topology(slurm={"nodes": None}, **THREE))
    cluster.said("pending: Slurm (Resources)")
    cluster.lab.run("scancel", second)
    cluster.said("router  http://")
    assert taken(cluster) == [set(), {4, 5, 6}]
    assert "#SBATCH --segment=3\n" in (cluster.run / "job.sbatch").read_text()

    node = cluster.lab.nodes[4]
    pid = cluster.lab.on(node, "pgrep", "-f", "^[^ ]*python.*launch_server").strip()
    cluster.lab.on(node, "kill", "-KILL", pid)
    began = time.monotonic()
    cluster.said(": killed by SIGKILL", 30)
    assert time.monotonic() - began < NOTICED_S
    assert launch.wait(60) == 4
    assert "prefill-0.1 died: killed by SIGKILL" in cluster.state["reason"]


def test_a_segment_of_ones_own(cluster):
    assert sorted(map(len, unasked(cluster, 4))) == [1, 3]
    cluster.serve(slurm={"nodes": None, "segment": 2}, **FOUR)
    assert taken(cluster) == [{1, 2}, {4, 5}]
    assert taken(cluster, "prefill-0", "prefill-0.1") == [{1, 2}, set()]
    stopped = cluster.disagg("stop", "--json")
    assert (stopped.returncode, json.loads(stopped.stdout)["exit_code"]) == (0, 0), stopped.stderr
    assert cluster.ended()["reason"] == "stopped"


def test_a_segment_that_no_block_holds(cluster):
    """The platform's domains have 18 nodes, so a topology of four asks for four of one block."""
    done = cluster.disagg("launch", cluster.topology(slurm={"nodes": None}, **FOUR))
    assert done.returncode == 4
    assert "Requested topology configuration is not available" in done.stderr
    assert "set executor.slurm.segment to what the cluster's blocks hold, or to 0" in done.stderr
    assert cluster.state["exit_code"] == 4


def test_prefill_and_decode_apart(cluster):
    """A heterogeneous job: each component with a segment of its own."""
    apart = {"nodes": None, "prefill": {"segment": 2}, "decode": {}}
    pools = {"prefill": {"tp": 8, "workers": 2}, "decode": {"tp": 4}}
    launch = cluster.launch(cluster.topology(slurm=apart, **THREE | pools))
    cluster.said("router  http://", 300)
    for number in (0, 1):
        prefill = taken(cluster, f"prefill-{number}", f"prefill-{number}.1")
        assert sorted(map(len, prefill)) == [0, 2]
    assert sorted(map(len, taken(cluster))) == [2, 3]
    assert cluster.disagg("stop").returncode == 0  # scancel would leave it KillWait, of which 24.11 may sleep away 5 s
    assert launch.wait(60) == 0
    assert cluster.ended()["reason"] == "stopped"


def allocation(cluster, *numbers, **topology):
    """Launch in an allocation of these nodes, until the evals are done."""
    nodes = ",".join(cluster.lab.nodes[number - 1] for number in numbers)
    asked = ("-w", nodes, f"-N{len(numbers)}", "--exclusive", "--mem=0", f"--gres=gpu:{GPUS}")
    done = cluster.salloc(*asked, slurm={"nodes": None}, **topology)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_an_allocation_over_two_blocks(cluster):
    """A domain takes the nodes of a block that holds it, and not those that Slurm names first."""
    allocation(cluster, 1, 4, 5, 6, **THREE)
    assert taken(cluster) == [set(), {4, 5, 6}]


def test_an_allocation_of_which_no_block_holds_a_domain(cluster):
    shown = allocation(cluster, 1, 2, 4, 5, **THREE)
    assert "NVLink domain 0 lies in b0, b1\n" in shown
    assert taken(cluster) == [{1, 2}, {4}]
