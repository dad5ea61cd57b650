"""The nodes of an allocation, as Slurm describes them, and which of them stands behind which host of a deployment."""

import ipaddress
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from disagg_cli.errors import LaunchFailed
from disagg_cli.executors.slurm import client
from disagg_cli.topology.deployment import Host

JOB = "SLURM_JOB_ID"
COUNTED = re.compile(r"(\d+)(?:\(x(\d+)\))?")


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """A node of the allocation.

    job and group: the component of a heterogeneous job that it belongs to, the job itself and None otherwise. cpus:
    those that the job has there. block: the NVLink domain, where Slurm knows it (topology/block).
    """

    name: str
    address: str
    job: str
    cpus: int
    group: int | None = None
    block: str = ""


def inside(env: Mapping[str, str]) -> bool:
    """Whether this process runs in an allocation."""
    return JOB in env


def allocation(env: Mapping[str, str]) -> tuple[Node, ...]:
    """The nodes of the allocation that this process runs in, in Slurm's order. LaunchFailed if Slurm does not say."""
    blocks = _blocks(client.ask("scontrol", "show", "topology")) if _has_blocks() else {}
    return tuple(
        Node(name=name, address=_address(address), job=job, cpus=cpus, group=group, block=blocks.get(name, ""))
        for job, group, listed, counts in _components(env)
        for (name, address), cpus in zip(_named(listed), counts, strict=True)
    )


def _components(env: Mapping[str, str]) -> Iterator[tuple[str, int | None, str, list[int]]]:
    """(job, group, node list, CPUs of each node) of the job, or of each component (sbatch(1), output environment)."""
    size = int(env.get("SLURM_HET_SIZE", "0"))
    suffixes = [(f"_HET_GROUP_{group}", group) for group in range(size)] if size else [("", None)]
    for suffix, group in suffixes:
        wanted = (f"SLURM_JOB_CPUS_PER_NODE{suffix}", f"{JOB}{suffix}", f"SLURM_JOB_NODELIST{suffix}")
        if missing := [name for name in wanted if not env.get(name)]:
            raise LaunchFailed(
                f"this is no complete environment of a Slurm job: {', '.join(missing)} not set",
                fix="start disagg in the shell that salloc or sbatch gives, or unset SLURM_JOB_ID to submit a job",
            )
        counts = cpu_counts(env[f"SLURM_JOB_CPUS_PER_NODE{suffix}"])
        yield env[f"{JOB}{suffix}"], group, env[f"SLURM_JOB_NODELIST{suffix}"], counts


def cpu_counts(text: str) -> list[int]:
    """`72(x2),36` as [72, 72, 36]."""
    return [int(count) for count, times in COUNTED.findall(text) for _ in range(int(times or 1))]


def _named(listed: str) -> list[tuple[str, str]]:
    """(name, address) of each node of a list, in its order."""
    found = client.records(client.ask("scontrol", "--oneliner", "show", "node", listed))
    addresses = {one["NodeName"]: one.get("NodeAddr", one["NodeName"]) for one in found}
    return [(name, addresses.get(name, name)) for name in client.hostnames(listed)]


def address_of(host: str) -> str:
    """The address of the node that goes by this host name, from anywhere. LaunchFailed if Slurm knows no such node."""
    ((_, address),) = _named(host.partition(".")[0])
    return _address(address)


def _address(given: str) -> str:
    """What other nodes reach: the address itself, or what a name stands for here. A name that stays one is bound as
    one: where a machine knows itself as 127.0.1.1, that would tell the others nothing, so loopback is not taken."""
    try:
        return str(ipaddress.ip_address(given))
    except ValueError:
        pass
    try:
        answers = socket.getaddrinfo(given, None, type=socket.SOCK_STREAM)
    except OSError:
        return given
    found = [ipaddress.ip_address(str(answer[4][0]).partition("%")[0]) for answer in answers]
    return next((str(one) for one in found if not one.is_loopback and not one.is_link_local), given)


def _has_blocks() -> bool:
    return "topology/block" in client.ask("scontrol", "show", "config")


def _blocks(text: str) -> dict[str, str]:
    """Node -> block, of the smallest blocks that Slurm lists."""
    found: dict[str, str] = {}
    for one in client.records(text):
        if "BlockName" in one and "Nodes" in one:
            for name in client.hostnames(one["Nodes"]):
                found.setdefault(name, one["BlockName"])
    return found


def stand_in(hosts: Sequence[Host], nodes: Sequence[Node]) -> dict[str, Node]:
    """The node behind each host, by the host's name: hosts of one NVLink domain on nodes of one block, if any has room.

    LaunchFailed if there are fewer nodes than hosts. Nodes keep Slurm's order as far as blocks allow.
    """
    groups = sorted({node.group or 0 for node in nodes})
    found: dict[str, Node] = {}
    for group in sorted({host.group for host in hosts}):
        here = [host for host in hosts if host.group == group]
        there = [node for node in nodes if len(groups) == 1 or (node.group or 0) == group]
        there = [node for node in there if node not in found.values()]
        if len(there) < len(here):
            raise LaunchFailed(
                f"the allocation has {len(nodes)} node(s), and the topology needs {len(hosts)}",
                fix="ask Slurm for more, or leave the allocation: disagg launch then asks for as many as are needed",
            )
        found |= _in_blocks(here, there)
    return found


def _in_blocks(hosts: Sequence[Host], nodes: Sequence[Node]) -> dict[str, Node]:
    """The largest domain first, each into the smallest block that holds it, else over the largest ones."""
    blocks: dict[str, list[Node]] = {}
    for node in nodes:
        blocks.setdefault(node.block, []).append(node)
    domains: dict[int | None, list[Host]] = {}
    for host in hosts:
        domains.setdefault(host.domain, []).append(host)
    found: dict[str, Node] = {}
    for together in sorted(domains.values(), key=len, reverse=True):
        fitting = [left for left in blocks.values() if len(left) >= len(together)]
        rooms = [min(fitting, key=len)] if fitting else sorted(blocks.values(), key=len, reverse=True)
        free = (room.pop(0) for room in rooms for _ in range(len(room)))
        found |= {host.name: node for host, node in zip(together, free, strict=False)}
    return found


def torn(hosts: Sequence[Host], placed: Mapping[str, Node]) -> list[str]:
    """Say which NVLink domains of the placement lie in several blocks."""
    domains: dict[int | None, set[str]] = {}
    for host in hosts:
        domains.setdefault(host.domain, set()).add(placed[host.name].block)
    return [f"NVLink domain {d} lies in {', '.join(sorted(b))}" for d, b in domains.items() if len(b) > 1]
