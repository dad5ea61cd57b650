"""What is known of the platforms that a topology can name. Facts in platforms.yaml, each with its source."""

from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import yaml


@dataclass(frozen=True, kw_only=True, slots=True)
class Platform:
    """One kind of machine. gpus_per_node 0 means that ranks run on CPU cores; memory_gb is 10^9 bytes per GPU."""

    name: str
    device: str
    gpus_per_node: int
    source: str
    memory_gb: int | None = None
    nvlink_domain: int | None = None

    @property
    def on_cpu(self) -> bool:
        """Whether servers run in SGLang's CPU engine, over host memory."""
        return self.device == "cpu"


@cache
def platforms() -> dict[str, Platform]:
    """All known platforms by name."""
    facts = yaml.safe_load(files(__package__).joinpath("platforms.yaml").read_text())
    return {name: Platform(name=name, **fields) for name, fields in facts.items()}
