"""Rules about the hosts as they are: what was found on each of them, against what the deployment needs there."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from packaging.version import Version

from disagg_cli.connector.releases import Choice, Origin
from disagg_cli.findings import topology_rules_machine
from disagg_cli.findings.finding import Finding, finding
from disagg_cli.findings.topology_case import Case
from disagg_cli.topology.deployment import Deployment, Host
from disagg_cli.topology.machine import HostFacts

Ports = Mapping[Host, Mapping[int, str]]
WHERE = "executor"


def judge_hosts(
    deployment: Deployment, hosts: Sequence[HostFacts], *, ports: Ports, plugin: bool, planned: Choice
) -> tuple[Finding, ...]:
    """All findings about these hosts.

    ports: what will listen where; plugin: whether servers need disagg's hooks; planned: what the plan was judged by.
    """
    each = (found for host in hosts for found in _judge(deployment, host, ports, planned, plugin=plugin))
    return (*_twice(ports), *each)


def _twice(ports: Ports) -> Iterator[Finding]:
    """Hosts of two names and one address that would listen at the same port."""
    names: dict[tuple[str, int], dict[str, None]] = {}
    for at, wanted in ports.items():
        for port in wanted:
            names.setdefault((at.address, port), {})[at.name] = None
    shared: dict[tuple[str, str], list[int]] = {}
    for (address, port), at_once in names.items():
        if len(at_once) > 1:
            shared.setdefault((" and ".join(at_once), address), []).append(port)
    for (who, address), twice in shared.items():
        message = f"{who} are one machine, {address}, where each would listen at {', '.join(map(str, twice))}"
        yield finding("DSG421", message, where=WHERE)


def _judge(
    deployment: Deployment, host: HostFacts, ports: Ports, planned: Choice, *, plugin: bool
) -> Iterator[Finding]:
    if host.problem:
        yield finding("DSG411", f"{host.host} cannot be used: {host.problem}", where=WHERE, fix=host.fix or None)
        return
    yield from _installed(deployment, host, planned, plugin=plugin)
    yield from _addresses(host, ports)
    if host.gpus is not None and host.gpus < (wanted := _gpus(deployment, host)):
        message = f"{host.host} has {host.gpus} GPU(s), and workers are placed on GPUs up to number {wanted - 1}"
        yield finding("DSG416", message, where=WHERE)
    if host.missing:
        yield finding("DSG417", f"{host.host} does not have {', '.join(host.missing)}", where=WHERE)
    if deployment.executor != "local":  # of this machine they have been judged with everything else
        yield from _machine(deployment, host)


def _machine(deployment: Deployment, host: HostFacts) -> Iterator[Finding]:
    """The rules about this machine, for what runs on that one."""
    here = (
        replace(pool, workers=tuple(w for w in pool.workers if host.host in {s.host.name for s in w.shares}))
        for pool in deployment.pools
    )
    there = replace(deployment, pools=tuple(pool for pool in here if pool.workers))
    case = Case(deployment=there, facts=host.facts, host=host.host)
    for rule in topology_rules_machine.RULES if there.pools else ():
        for found in rule(case):
            yield replace(found, message=f"{host.host}: {found.message}")


def _installed(deployment: Deployment, host: HostFacts, planned: Choice, *, plugin: bool) -> Iterator[Finding]:
    missing = [] if _version(host, "sglang") else ["sglang"]
    if deployment.connector.backend == "nixl" and not any(_version(host, name) for name in _nixl(host)):
        missing.append("nixl")
    if host.host == deployment.router.host.name and not _version(host, "sglang-router"):
        missing.append("sglang-router")
    if missing:
        message = f"not installed on {host.host}, for {host.python}: {', '.join(missing)}"
        yield finding("DSG412", message, where=WHERE)
    found = _version(host, "sglang")
    if found and Version(found).public != Version(planned.sglang).public:
        why = {Origin.ASKED: "", Origin.INSTALLED: ", as here", Origin.NEWEST: ", the newest known"}[planned.origin]
        message = f"{host.host} has sglang {found}, and the plan was judged by {planned.sglang}{why}"
        yield finding("DSG413", message, where="engine.sglang")
    if plugin and found and not host.plugin:
        yield finding("DSG414", f"disagg is not installed on {host.host}, for {host.python}", where=WHERE)


def _version(host: HostFacts, package: str) -> str | None:
    return host.facts.packages.get(package)


def _nixl(host: HostFacts) -> list[str]:
    return [name for name in host.facts.packages if name.startswith("nixl")]


def _addresses(host: HostFacts, ports: Ports) -> Iterator[Finding]:
    for address in host.foreign:
        yield finding("DSG418", f"{address} is no address of {host.host}", where=WHERE)
    for at, wanted in ports.items():
        if at.name != host.host:
            continue
        if taken := host.taken.get(at.address):
            message = f"ports that are taken on {host.host} ({at.address}): {_who(taken, wanted)}"
            yield finding("DSG415", message, where=WHERE)
        if lost := host.unreachable.get(at.address):
            who = _who(lost, wanted)
            message = f"ssh reaches {host.host}, and nothing else from here reaches {at.address}: {who}"
            yield finding("DSG419", message, where=WHERE)
        lost_by = {peer: lost for peer, places in host.cut_off.items() if (lost := places.get(at.address))}
        for lost in dict.fromkeys(lost_by.values()):
            peers = ", ".join(peer for peer in lost_by if lost_by[peer] == lost)
            message = f"not reached from {peers}, though {host.host} listens at {at.address}: {_who(lost, wanted)}"
            yield finding("DSG420", message, where=WHERE)


def _who(ports: Sequence[int], wanted: Mapping[int, str]) -> str:
    return ", ".join(f"{port} ({wanted[port]})" for port in ports)


def _gpus(deployment: Deployment, host: HostFacts) -> int:
    """One more than the highest number of a GPU that is used there."""
    shares = [share for worker in deployment.workers for share in worker.shares if share.host.name == host.host]
    return max((gpu + 1 for share in shares for gpu in share.gpus), default=0)
