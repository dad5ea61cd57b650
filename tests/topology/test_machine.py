"""Adapters and GPUs of a made-up /sys, and copies of UCX in made-up folders."""

import pytest
from deployments import SMALLEST

from disagg_cli.connector.releases import choose_release
from disagg_cli.findings.host_rules import judge_hosts
from disagg_cli.findings.topology_rules import judge_topology
from disagg_cli.topology.machine import Facts, HostFacts, Rail, gather, rails
from disagg_cli.topology.resolve import draft
from disagg_cli.topology.spec import TopologySpec
from disagg_cli.topology.survey import ucx_libraries


@pytest.fixture
def sys(tmp_path):
    """A machine of two sockets: on each a PCI switch with one GPU and one adapter."""
    for socket in (0, 1):
        switch = tmp_path / f"devices/pci{socket}/switch"
        for device, kind in ((f"0000:{socket}1:00.0", "gpu"), (f"0000:{socket}2:00.0", "nic")):
            folder = switch / device
            folder.mkdir(parents=True)
            (folder / "numa_node").write_text(f"{socket}\n")
            (folder / "vendor").write_text("0x10de\n" if kind == "gpu" else "0x15b3\n")
            (folder / "class").write_text("0x030200\n" if kind == "gpu" else "0x020700\n")
            listed = tmp_path / "bus/pci/devices" / device
            listed.parent.mkdir(parents=True, exist_ok=True)
            listed.symlink_to(folder)
        adapter = tmp_path / f"class/infiniband/mlx5_{socket}"
        (adapter / "ports/1").mkdir(parents=True)
        (adapter / "ports/1/state").write_text("4: ACTIVE\n" if socket == 0 else "1: DOWN\n")
        (adapter / "device").symlink_to(switch / f"0000:{socket}2:00.0")
    return tmp_path


def test_each_adapter_is_nearest_to_the_gpu_on_its_switch(sys):
    assert rails(sys) == (
        Rail(name="mlx5_0", numa=0, gpus=(0,), active=True),
        Rail(name="mlx5_1", numa=1, gpus=(1,), active=False),
    )


def test_a_machine_without_adapters(tmp_path):
    assert rails(tmp_path) == ()


def test_ucx_in_a_folder_of_the_loader(tmp_path):
    (tmp_path / "libucp.so.0").touch()
    assert ucx_libraries([str(tmp_path), "", str(tmp_path / "none")]) == [str(tmp_path / "libucp.so.0")]


def test_gpus_of_a_board_with_four_switches(tmp_path):
    """Eight GPUs and eight adapters in pairs on four switches, two switches a socket: each GPU has two near ones."""
    for n in range(8):
        for kind, slot in (("gpu", n), ("nic", n + 8)):
            folder = tmp_path / f"devices/pci{n // 4}/switch{n // 2}/0000:{slot:02x}:00.0"
            folder.mkdir(parents=True)
            (folder / "numa_node").write_text(f"{n // 4}\n")
            (folder / "vendor").write_text("0x10de\n" if kind == "gpu" else "0x15b3\n")
            (folder / "class").write_text("0x030200\n" if kind == "gpu" else "0x020700\n")
            listed = tmp_path / "bus/pci/devices" / folder.name
            listed.parent.mkdir(parents=True, exist_ok=True)
            listed.symlink_to(folder)
            if kind == "nic":
                adapter = tmp_path / f"class/infiniband/mlx5_{n}"
                adapter.mkdir(parents=True)
                (adapter / "device").symlink_to(folder)
    assert [rail.gpus for rail in rails(tmp_path)] == [(n // 2 * 2, n // 2 * 2 + 1) for n in range(8)]


def test_an_adapter_whose_device_is_gone(sys):
    (sys / "class/infiniband/mlx5_9").mkdir()
    assert [rail.name for rail in rails(sys)] == ["mlx5_0", "mlx5_1", "mlx5_9"]


@pytest.mark.parametrize(
    ("nets", "found"),
    [
        ("mlx5_0:1", {"DSG732"}),  # decode's GPU is on the other socket
        ("mlx5_1:1", {"DSG731", "DSG732"}),  # its port is down, and prefill's GPU is on the other socket
        ("mlx5_7:1", {"DSG731"}),
        ("mlx5_0:1,mlx5_1:1", {"DSG731", "DSG732"}),
        ("eth0", set()),
    ],
)
def test_the_map_against_what_the_topology_says(sys, nets, found):
    """From a made-up /sys to the findings, for workers on this machine and on a host that was looked at."""
    facts = Facts(installed="0.5.23", packages={"nixl-cu13": "1.5.1"}, torch_cuda=13, rails=rails(sys))
    env = {"engine": {"env": {"UCX_NET_DEVICES": nets}}, "prefill": {"tp": 1}, "decode": {"tp": 1}, "platform": "h200"}
    here = draft(TopologySpec.model_validate(SMALLEST | env))
    there = draft(TopologySpec.model_validate(SMALLEST | env | {"executor": {"ssh": {"hosts": ["a"]}}}))
    looked_at = judge_hosts(
        there,
        [HostFacts(host="a", gpus=2, plugin=True, facts=facts)],
        ports={},
        plugin=False,
        planned=choose_release("0.5.23"),
    )
    for judged in (judge_topology(here, facts), looked_at):
        assert {one.code for one in judged if one.code.startswith("DSG73")} == found


def test_this_machine():
    facts = gather()
    assert isinstance(facts, Facts)
    assert facts.installed == facts.packages["sglang"]
