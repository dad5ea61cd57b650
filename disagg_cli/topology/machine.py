"""What is known of this machine, as values: installed versions, copies of UCX, network adapters."""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from disagg_cli.engine.flags import FlagList, installed_flags

PACKAGES = ("sglang", "sglang-router", "nixl", "nixl-cu12", "nixl-cu13", "torch")
SYSTEM_LIBRARIES = ("/usr/lib", "/usr/lib64", "/usr/local/lib", "/opt/hpcx/ucx/lib")
GPU_CLASSES = ("0x0302", "0x0300")
NVIDIA = "0x10de"


@dataclass(frozen=True, kw_only=True, slots=True)
class Rail:
    """A network adapter, by its name in /sys/class/infiniband. gpus: those that no other adapter is nearer to."""

    name: str
    numa: int | None = None
    gpus: tuple[int, ...] = ()
    active: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What rules may know of the machine. installed: SGLang's version; packages: those of all that matter.

    torch_cuda: the CUDA major that torch was built for. ucx: UCX libraries that a server may load besides the one that
    NIXL brings. rails: network adapters, None where the machine was not looked at. flags: those of the installed
    SGLang, where it is none of the releases whose flags are packaged.
    """

    installed: str | None = None
    packages: Mapping[str, str | None] = field(default_factory=dict)
    torch_cuda: int | None = None
    ucx: tuple[str, ...] = ()
    rails: tuple[Rail, ...] | None = None
    flags: FlagList | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class HostFacts:
    """What is known of one host, by its name in the deployment. problem: why it could not be asked, and what to do.

    python: what runs SGLang there. cores: those that its processes may use. package: the folder of the disagg_cli that
    this Python imports; plugin: whether SGLang will find its hooks. gpus: None where no driver could be asked. foreign:
    addresses that are to be bound there and are not its own; taken: ports that cannot be bound, by address. missing: of
    the paths asked for. facts: the same as of this machine.
    """

    host: str
    problem: str = ""
    fix: str = ""
    python: str = "python3"
    cores: tuple[int, ...] = ()
    package: str | None = None
    plugin: bool = False
    gpus: int | None = None
    foreign: tuple[str, ...] = ()
    taken: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    facts: Facts = field(default_factory=Facts)


def gather() -> Facts:
    """Look at this machine. Milliseconds: package metadata and a few small files."""
    packages = {name: _version(name) for name in PACKAGES}
    return Facts(
        flags=_flags(packages["sglang"]),
        installed=packages["sglang"],
        packages=packages,
        torch_cuda=_cuda_of_torch() if packages["torch"] else None,
        ucx=tuple(ucx_libraries([*os.environ.get("LD_LIBRARY_PATH", "").split(":"), *SYSTEM_LIBRARIES])),
        rails=rails(Path("/sys")),
    )


def _flags(sglang: str | None) -> FlagList | None:
    if sglang is None:
        return None
    return installed_flags(sglang, Path(str(metadata.distribution("sglang").locate_file(""))))


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cuda_of_torch() -> int | None:
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


def rails(sys: Path) -> tuple[Rail, ...]:
    """The InfiniBand and RoCE adapters below a /sys, each with its NUMA node and the GPUs that it is nearest to."""
    devices = {path.name: (path / "device").resolve() for path in sorted((sys / "class/infiniband").glob("*"))}
    gpus = _gpus(sys)
    near = {index: _nearest(gpu, devices) for index, gpu in enumerate(gpus)}
    return tuple(
        Rail(
            name=name,
            numa=_number(device / "numa_node"),
            gpus=tuple(index for index, names in near.items() if name in names),
            active=_active(sys / "class/infiniband" / name),
        )
        for name, device in devices.items()
    )


def _gpus(sys: Path) -> list[Path]:
    """NVIDIA's GPUs by PCI address, which is how CUDA_DEVICE_ORDER=PCI_BUS_ID counts them."""
    found = [
        path
        for path in sorted((sys / "bus/pci/devices").glob("*"))
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
