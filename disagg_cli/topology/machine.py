"""What is known of machines, as values: installed versions, copies of UCX, network adapters. survey.py looks."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from disagg_cli.topology import survey
from disagg_cli.topology.flags import FlagList, installed_flags


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
    the paths asked for. unreachable: ports that disagg cannot connect to from here, by address; cut_off: those that
    other hosts cannot, by their names. facts: the same as of this machine.
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
    unreachable: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    cut_off: Mapping[str, Mapping[str, tuple[int, ...]]] = field(default_factory=dict)
    facts: Facts = field(default_factory=Facts)


def gather() -> Facts:
    """Look at this machine. Milliseconds: package metadata and a few small files."""
    facts = facts_of(survey.survey())
    return replace(facts, flags=_flags(facts.installed))


def facts_of(found: Mapping[str, Any]) -> Facts:
    """What survey.py has found, here or on another host, as values."""
    return Facts(
        installed=found["packages"]["sglang"],
        packages=dict(found["packages"]),
        torch_cuda=found["torch_cuda"],
        ucx=tuple(found["ucx"]),
        rails=tuple(_rail(rail) for rail in found["rails"]),
    )


def host_facts(host: str, found: Mapping[str, Any], facts: Facts) -> HostFacts:
    """What survey.py has found out about a host, as values."""
    return HostFacts(
        host=host,
        facts=facts,
        python=found["python"],
        cores=tuple(found["cores"]),
        package=found["package"],
        plugin=found["plugin"],
        gpus=found["gpus"],
        foreign=tuple(found["foreign"]),
        taken={address: tuple(taken) for address, taken in found["taken"].items()},
        missing=tuple(found["missing"]),
    )


def rails(sys: Path) -> tuple[Rail, ...]:
    """The adapters below a /sys."""
    return tuple(_rail(rail) for rail in survey.rails(sys))


def _rail(found: Mapping[str, Any]) -> Rail:
    return Rail(**{**found, "gpus": tuple(found["gpus"])})


def _flags(sglang: str | None) -> FlagList | None:
    if sglang is None:
        return None
    return installed_flags(sglang, Path(str(metadata.distribution("sglang").locate_file(""))))
