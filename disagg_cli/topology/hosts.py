"""The hosts that a topology names, or that a Slurm job will find. Pure."""

from collections.abc import Iterator, Mapping, Sequence

from disagg_cli.topology.deployment import Deployment, Host
from disagg_cli.topology.placement import MOST_NODES
from disagg_cli.topology.platforms import Platform
from disagg_cli.topology.slurm import SlurmPart, SlurmSpec, segment_of
from disagg_cli.topology.spec import RoleSpec, TopologySpec

Counts = Mapping[int, int]
"""How many nodes each component of a Slurm job has."""


def hosts_of(spec: TopologySpec, platform: Platform, counts: Counts | None = None) -> tuple[Host, ...]:
    """The hosts, in the order in which workers fill them. counts: of a Slurm job's nodes, once they are known."""
    gpus = platform.gpus_per_node
    if ssh := spec.executor.ssh:
        domains = _domains(len(ssh.hosts), ssh.domains or [], platform.nodes_per_domain)
        return tuple(
            Host(
                name=name,
                address=ssh.addresses.get(name) or name.rpartition("@")[2],
                gpus=gpus,
                local=False,
                domain=domain,
            )
            for name, domain in zip(ssh.hosts, domains, strict=True)
        )
    if other := spec.executor.other:
        return tuple(Host(name=name, address=name, gpus=gpus, local=False) for name in other.hosts)
    if slurm := spec.executor.slurm:
        return tuple(_nodes(spec, slurm, platform, counts or {}))
    return (Host(name="localhost", address="127.0.0.1", gpus=gpus, local=True, domain=0),)


def _domains(count: int, sizes: list[int], usual: int) -> list[int]:
    """The NVLink domain of each host: of the sizes said, or full ones."""
    if sizes:
        return [domain for domain, size in enumerate(sizes) for _ in range(size)]
    return [n // usual for n in range(count)]


def _nodes(spec: TopologySpec, slurm: SlurmSpec, platform: Platform, counts: Counts) -> Iterator[Host]:
    """Stand-ins for nodes that Slurm has yet to choose: `node-0`, `node-1`, ..."""
    number = domain = 0
    for group, (part, pools) in enumerate(_components(spec, slurm)):
        count = part.nodes or counts.get(group) or _nodes_at_most(pools, platform.gpus_per_node)
        segment = segment_of(count, part.segment, platform.nodes_per_domain)
        domains = _domains(count, [], segment if segment > 1 else platform.nodes_per_domain)
        for inside in domains:
            name = f"node-{number}"
            gpus = platform.gpus_per_node
            yield Host(name=name, address=name, gpus=gpus, local=False, domain=domain + inside, group=group)
            number += 1
        domain += domains[-1] + 1


def _components(spec: TopologySpec, slurm: SlurmSpec) -> list[tuple[SlurmPart, list[RoleSpec]]]:
    """How each component of the job is asked for, and the pools that it is for."""
    if slurm.apart:
        return [(slurm.part(0), spec.prefill), (slurm.part(1), spec.decode)]
    return [(slurm, [*spec.prefill, *spec.decode])]


def _nodes_at_most(pools: Sequence[RoleSpec], per_node: int) -> int:
    """Enough nodes for every worker on nodes of its own; those that stay empty are not asked for. On CPUs one does."""
    named = {host for pool in pools for worker in pool.place or () for host in worker}
    needed = sum(pool.workers * -(-pool.ranks // per_node) for pool in pools) if per_node else 1
    return min(MOST_NODES, max(needed, len(named)))


def used(deployment: Deployment) -> Counts:
    """How many nodes of each component something runs on."""
    groups = [host.group for host in deployment.hosts]
    return {group: groups.count(group) for group in groups}
