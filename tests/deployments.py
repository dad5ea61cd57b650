"""Topologies for tests: the smallest one, with some of its keys changed."""

import os
from pathlib import Path
from typing import Any

import yaml

from disagg_cli.topology.deployment import Deployment
from disagg_cli.topology.resolve import resolve
from disagg_cli.topology.spec import TopologySpec

ROOT = Path(__file__).parents[1]

FREE_PORTS = 28000 + os.getpid() % 16 * 200
"""The first of 200 ports that no other test run uses, most likely: below the ephemeral ones, above the e2e tests'."""

SMALLEST: dict[str, Any] = {
    "name": "demo",
    "platform": "cpu",
    "model": "synthetic",
    "prefill": {"tp": 2},
    "decode": {"workers": 2},
}

ON_GPUS = SMALLEST | {"platform": "gb200-nvl72", "model": "Qwen/Qwen3-32B"}


def on_cpu(**changes: Any) -> Deployment:
    """The smallest topology, resolved."""
    return resolve(TopologySpec.model_validate(SMALLEST | changes))


def on_gpus(*hosts: str, **changes: Any) -> Deployment:
    """The same on GB200 nodes of four GPUs, resolved."""
    executor = {"executor": {"ssh": {"hosts": list(hosts)}}} if hosts else {}
    return resolve(TopologySpec.model_validate(ON_GPUS | executor | changes))


def write_topology(folder: Path, **changes: Any) -> Path:
    """The smallest topology as a file."""
    file = folder / "topology.yaml"
    file.write_text(yaml.safe_dump(SMALLEST | changes))
    return file
