"""The command line of one step (srun(1) of Slurm 22.05 and 24.11). Pure."""

from collections.abc import Mapping, Sequence

from disagg_cli.executors.slurm.nodes import Node
from disagg_cli.executors.slurm.options import words
from disagg_cli.topology.deployment import Host
from disagg_cli.topology.slurm import SlurmSpec
from disagg_cli.topology.values import Scalar

ONE_STREAM = ("/bin/sh", "-c", 'exec "$@" 2>&1', "sh")
"""srun carries output and errors apart and mixes up their order, so they are one stream before it gets them."""

SET_BY_SLURM = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
"""Variables that Slurm sets in a step over those that srun has: there, to all GPUs that the step may use."""


def step(
    node: Node, host: Host, name: str, settings: SlurmSpec, argv: Sequence[str], env: Mapping[str, str]
) -> list[str]:
    """srun for one process on one node. env: what the process wants on top of srun's own environment, which it gets.

    Steps overlap: several workers of a node see all its GPUs, and are told theirs by number.
    """
    options: dict[str, Scalar] = {
        "job-name": name,
        "overlap": True,
        "exact": True,
        "nodes": 1,
        "ntasks": 1,
        "nodelist": node.name,
        "cpus-per-task": node.cpus,  # with --exact a step has one CPU unless it asks for more
        "cpu-bind": "none",  # where a job's cores are no block, srun refuses the binding that it would choose itself
        "mpi": "none",
        "export": "ALL",
        **_gpus(host, settings),
        **({} if node.group is None else {"het-group": node.group}),
        **settings.step_args,
    }
    flags = [word for key, value in options.items() if value is not False for word in words(key, value)]
    kept = [f"{key}={env[key]}" for key in SET_BY_SLURM if key in env]
    return ["srun", *flags, *ONE_STREAM, *(["env", *kept] if kept else []), *argv]


def _gpus(host: Host, settings: SlurmSpec) -> dict[str, Scalar]:
    """All GPUs of the node, by the option with which the job asks for them.

    Where the deployment has none, a step of an allocation of somebody's would ask for the GPUs of all its nodes
    together (salloc --gpus), which no node has.
    """
    how = settings.part(host.group).gpus if settings.apart else settings.gpus
    if not host.gpus:
        return {"gres": "none"}
    if how == "none":
        return {}
    return {"gpus-per-node": host.gpus} if how == "gpus-per-node" else {"gres": f"gpu:{host.gpus}"}
