"""Adapters and GPUs of a made-up /sys, and copies of UCX in made-up folders."""

import pytest

from disagg_cli.topology.machine import Facts, Rail, gather, rails
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


def test_this_machine():
    facts = gather()
    assert isinstance(facts, Facts)
    assert facts.installed == facts.packages["sglang"]
