"""A look at the machine that this runs on, as plain data. Standard library only, Python 3.8 or later.

disagg runs it here, and the ssh helper (executors/helper.py) there, from this text: nothing has to be installed.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PACKAGES = ("sglang", "sglang-router", "nixl", "nixl-cu12", "nixl-cu13", "torch")
SYSTEM_LIBRARIES = ("/usr/lib", "/usr/lib64", "/usr/local/lib", "/opt/hpcx/ucx/lib")
GPU_CLASSES = ("0x0302", "0x0300")
NVIDIA = "0x10de"
NVIDIA_SMI_S = 15.0
BACKLOG = 4096
"""Connections that a listener takes though nobody accepts them, as far as the kernel goes along (listen(2)): one from
each host. Python asks for 128, and the kernel answers no more than those."""
AT_ONCE = 64
"""Connections that are tried side by side."""


def survey() -> dict[str, Any]:
    """What rules may know of this machine, but for its GPUs. Milliseconds: package metadata and a few small files."""
    packages = {name: version(name) for name in PACKAGES}
    return {
        "packages": packages,
        "torch_cuda": cuda_of_torch() if packages["torch"] else None,
        "ucx": ucx_libraries([*os.environ.get("LD_LIBRARY_PATH", "").split(":"), *SYSTEM_LIBRARIES]),
        "rails": rails(Path("/sys")),
    }


def host(ports: Mapping[str, Iterable[int]], paths: Iterable[str]) -> dict[str, Any]:
    """What a host is like for the processes of this Python.

    foreign: of these addresses, those that are not its own; taken: which of their ports cannot be bound. missing: of
    these paths.
    """
    found = find_spec("disagg_cli")
    own = [address for address in ports if _can_bind(address, 0)]
    return {
        "python": sys.executable,
        "cores": sorted(os.sched_getaffinity(0)),
        "package": next(iter(found.submodule_search_locations or ()), None) if found else None,
        "plugin": bool(found) and _has_plugin(),
        "gpus": count_gpus(),
        "foreign": [address for address in ports if address not in own],
        "taken": {address: [port for port in ports[address] if not _can_bind(address, port)] for address in own},
        "missing": [path for path in paths if not Path(path).exists()],
    }


def version(package: str) -> str | None:
    """The version of an installed package."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _has_plugin() -> bool:
    """Whether SGLang will find disagg's hooks here."""
    try:
        entries = metadata.distribution("disagg-cli").entry_points
    except metadata.PackageNotFoundError:
        return False
    return any(entry.group == "sglang.srt.plugins" for entry in entries)


def count_gpus() -> int | None:
    """NVIDIA's GPUs: as many as nvidia-smi lists, else as many as the PCI bus has, None where there is no bus."""
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], stdout=subprocess.PIPE, timeout=NVIDIA_SMI_S, check=True).stdout
        return listed.count(b"GPU ")
    except (OSError, subprocess.SubprocessError):
        return len(_gpus(Path("/sys"))) if Path("/sys/bus/pci/devices").is_dir() else None


def _can_bind(address: str, port: int) -> bool:
    try:
        _bound(address, port).close()
    except OSError:
        return False
    return True


def listen(address: str, port: int) -> socket.socket:
    """A listener at an address of this host. OSError if there can be none."""
    listener = _bound(address, port)
    listener.listen(BACKLOG)
    return listener


def unreached(where: Mapping[str, Iterable[int]], within: float) -> dict[str, list[int]]:
    """Which of these ports, address -> ports, nothing answers at within so many seconds, seen from here."""
    from concurrent.futures import ThreadPoolExecutor  # a look at one machine has no use for it

    places = [(address, port) for address, ports in where.items() for port in ports]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = dict(pool.map(lambda place: (place, _connects(place, within)), places))
    lost = [place for place in places if not answers[place]]
    return {address: [port for at, port in lost if at == address] for address, _ in lost}


def _connects(place: tuple[str, int], within: float) -> bool:
    try:
        socket.create_connection(place, within).close()
    except OSError:
        return False
    return True


def _bound(address: str, port: int) -> socket.socket:
    """As servers do: connections that linger from a run that has just ended do not count."""
    family, kind, _, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    bound = socket.socket(family, kind)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(where)
    except OSError:
        bound.close()
        raise
    return bound


def cuda_of_torch() -> int | None:
    """The CUDA major: of the version's local part (`+cu130`), else of the CUDA packages that torch requires."""
    local = re.search(r"\+cu(\d\d)", metadata.version("torch"))
    names = " ".join(metadata.requires("torch") or ())
    found = local or re.search(r"\bnvidia-[a-z-]+-cu(\d\d)\b", names)
    return int(found[1]) if found else None


def ucx_libraries(folders: Iterable[str]) -> list[str]:
    """libucp files in folders of the loader's path."""
    places = [Path(folder) for folder in dict.fromkeys(folders) if folder]
    found = [path for place in places if place.is_dir() for path in sorted(place.glob("libucp.so*"))]
    if Path("/usr/lib") in places:
        found += sorted(Path("/usr/lib").glob("*-linux-gnu/libucp.so*"))
    return list(dict.fromkeys(str(path.resolve()) for path in found))


def rails(sys_folder: Path) -> list[dict[str, Any]]:
    """The InfiniBand and RoCE adapters below a /sys, each with its NUMA node and the GPUs that it is nearest to."""
    adapters = sys_folder / "class/infiniband"
    devices = {path.name: (path / "device").resolve() for path in sorted(adapters.glob("*"))}
    near = {index: _nearest(gpu, devices) for index, gpu in enumerate(_gpus(sys_folder))}
    return [
        {
            "name": name,
            "numa": _number(device / "numa_node"),
            "gpus": [index for index, names in near.items() if name in names],
            "active": _active(adapters / name),
        }
        for name, device in devices.items()
    ]


def _gpus(sys_folder: Path) -> list[Path]:
    """NVIDIA's GPUs by PCI address, which is how CUDA_DEVICE_ORDER=PCI_BUS_ID counts them."""
    found = [
        path
        for path in sorted((sys_folder / "bus/pci/devices").glob("*"))
        if _text(path / "vendor") == NVIDIA and _text(path / "class")[:6] in GPU_CLASSES
    ]
    return [path.resolve() for path in found]


def _nearest(gpu: Path, devices: Mapping[str, Path]) -> set[str]:
    """The adapters that share the longest way through PCI switches with a GPU, those of its NUMA node first."""
    shared = {name: len(os.path.commonpath([gpu, device])) for name, device in devices.items()}
    best = max(shared.values(), default=0)
    nearest = {name for name, length in shared.items() if length == best}
    numa = _number(gpu / "numa_node")
    same_node = {name for name in nearest if _number(devices[name] / "numa_node") == numa}
    return same_node or nearest


def _active(adapter: Path) -> bool:
    """Whether some port is up; true where no port says."""
    states = [_text(path) for path in adapter.glob("ports/*/state")]
    return not states or any("ACTIVE" in state for state in states)


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.lstrip("-").isdigit() and int(text) >= 0 else None
