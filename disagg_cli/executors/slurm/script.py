"""The sbatch script of a deployment: its job, whose only program is `disagg launch` itself. Pure.

Options and their meaning: sbatch(1) of Slurm 22.05 and 24.11; `--segment` exists from 23.11 on.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from disagg_cli.errors import LaunchFailed
from disagg_cli.executors.slurm.options import words
from disagg_cli.topology.deployment import Deployment, Host
from disagg_cli.topology.slurm import SlurmPart, SlurmSpec, segment_of
from disagg_cli.topology.values import Scalar

WHY: Mapping[str, str] = {
    "segment": "So many nodes at a time are to be of one NVLink domain: between domains KV takes the slower network.",
    "no-requeue": "A job that Slurm starts once more would write into the record of the run that has failed.",
    "no-kill": "When a node fails, disagg names it, ends the rest and says so; without this Slurm ends the job first.",
    "signal": "Told in time, disagg ends the run before the job's time limit does.",
}


def script(deployment: Deployment, launch: Sequence[str], *, output: Path | None = None) -> str:
    """The script. launch: the command that runs in the job, a Python's; output: where that writes what it says."""
    settings = SlurmSpec.model_validate(deployment.executor_settings)
    parts = _parts(deployment)
    lines = ["#!/bin/bash", f"# {deployment.name}: {_contents(deployment)}"]
    for number, hosts in enumerate(parts):
        part = settings.part(number) if settings.apart else settings
        wanted = _nodes(deployment, part, hosts)
        if number == 0:
            lines += _directives(_job(deployment, settings, output) | wanted | part.args, WHY)
        else:
            lines += ["#SBATCH hetjob", *_directives(wanted | part.args, {})]
    return "\n".join([*lines, "", _there(launch[0]), f"exec {shlex.join(launch)}", ""])


def _there(python: str) -> str:
    """Say so where the job's Python is not there, is made for another kind of machine, or does not know disagg."""
    told = shlex.quote(f"{python} does not run disagg here; executor.slurm.python is to name one that does")
    failed = f'echo "$(uname -n):" {told} >&2; exit {LaunchFailed.exit_code};'
    return f"{shlex.join([python, '-c', 'import disagg_cli'])} || {{ {failed} }}"


def _parts(deployment: Deployment) -> list[list[Host]]:
    """The hosts of each component of the job: one, unless prefill and decode are asked for apart."""
    groups = sorted({host.group for host in deployment.hosts})
    return [[host for host in deployment.hosts if host.group == group] for group in groups]


def _contents(deployment: Deployment) -> str:
    counts = [f"{len(deployment.role(role))} {role}" for role in ("prefill", "decode")]
    return f"{' and '.join(counts)} worker(s) on {len(deployment.hosts)} node(s)"


def _job(deployment: Deployment, settings: SlurmSpec, output: Path | None) -> dict[str, Scalar]:
    """What is said once for the whole job."""
    wanted: dict[str, Scalar] = {"job-name": deployment.name}
    if output:
        pattern = str(output).replace("%", "%%")  # sbatch would put the job's number, name, ... there
        wanted |= {"output": pattern, "open-mode": "append"}
    return wanted | {"export": "ALL", "signal": f"B:USR1@{settings.stop_before_s}"}


def _nodes(deployment: Deployment, part: SlurmPart, hosts: Sequence[Host]) -> dict[str, Scalar]:
    """What is said of each component. Whole nodes: placement gives away GPUs by number, and ports, of all of a node."""
    wanted: dict[str, Scalar] = {"nodes": len(hosts), "exclusive": True, "mem": 0}
    if (count := hosts[0].gpus) and part.gpus != "none":
        wanted |= {"gpus-per-node": count} if part.gpus == "gpus-per-node" else {"gres": f"gpu:{count}"}
    if (segment := segment_of(len(hosts), part.segment, deployment.platform.nodes_per_domain)) > 1:
        wanted["segment"] = segment
    for name in ("partition", "account", "time"):
        if value := getattr(part, name):
            wanted[name] = value
    return wanted | {"no-requeue": True, "no-kill": True}


def _directives(wanted: Mapping[str, Scalar], why: Mapping[str, str]) -> Iterator[str]:
    """One line for each option, with the reason before those that need one; false leaves an option out."""
    for name, value in wanted.items():
        if value is False:
            continue
        if name in why:
            yield f"# {why[name]}"
        yield f"#SBATCH {shlex.join(words(name, value))}"
