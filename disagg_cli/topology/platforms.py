"""What is known of the platforms that a topology can name. Facts in platforms.yaml, each with its source."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from disagg_cli.facts import read_facts


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """An environment variable that a platform wants for a transport. value: None where it depends on the machine."""

    name: str
    transport: str
    when: str
    why: str
    source: str
    value: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Platform:
    """One kind of machine. gpus_per_node 0 means that ranks run on CPU cores; memory_gb is 10^9 bytes per GPU.

    scale_up and scale_out name links of kv/links.yaml: inside an NVLink domain, and between domains. source: where each
    fact is known from; keys name the facts, several by commas.
    """

    name: str
    device: str
    gpus_per_node: int
    source: Mapping[str, str]
    architecture: str | None = None
    memory_gb: int | None = None
    nvlink_domain: int | None = None
    nics_per_node: int = 0
    scale_up: str | None = None
    scale_out: str | None = None
    verified: bool = True
    environment: tuple[Setting, ...] = ()

    @property
    def on_cpu(self) -> bool:
        """Whether servers run in SGLang's CPU engine, over host memory."""
        return self.device == "cpu"

    @property
    def nodes_per_domain(self) -> int:
        """How many hosts share an NVLink domain."""
        return max(1, (self.nvlink_domain or 0) // max(1, self.gpus_per_node))


@cache
def platforms() -> dict[str, Platform]:
    """All known platforms by name."""
    facts = read_facts(Path(__file__).with_name("platforms.yaml"))
    return {
        name: Platform(
            name=name,
            environment=tuple(Setting(**setting) for setting in fields.pop("environment", ())),
            **fields,
        )
        for name, fields in facts.items()
    }
