"""Rules about addresses and ports: what listens where, and what others are told."""

import ipaddress
from collections import defaultdict
from collections.abc import Iterator

from disagg_cli.findings.finding import Finding, finding
from disagg_cli.findings.topology_case import WILDCARD, Case, loopback, some
from disagg_cli.topology.deployment import Worker, bracketed
from disagg_cli.topology.placement import HANDSHAKE

EPHEMERAL = 32768
"""The first port that Linux gives outgoing connections (/proc/sys/net/ipv4/ip_local_port_range) by default."""

OWN_ADDRESS = ("SGLANG_HOST_IP", "HOST_IP")
"""Read by SGLang for the address that it tells others (srt/utils/network.py, 0.5.23)."""

OTHER_PORTS = ("grpc-port", "engine-info-bootstrap-port", "prometheus-port", "metrics-port")


def port_twice(case: Case) -> Iterator[Finding]:
    """DSG401: two listeners on one host want the same port."""
    wanted: dict[tuple[str, int], list[tuple[str, str]]] = defaultdict(list)
    for where, host, port, who in _listeners(case):
        wanted[host, port].append((where, who))
    for (host, port), users in wanted.items():
        if len(users) > 1:
            message = f"port {port} on {host} is wanted by {some([who for _, who in users])}"
            yield finding("DSG401", message, where=users[-1][0])


def _listeners(case: Case) -> Iterator[tuple[str, str, int, str]]:
    router = case.deployment.router
    yield "router.port", router.host.name, router.port, "the router"
    yield "router", router.host.name, router.metrics_port, "the router's metrics"
    for pool in case.deployment.pools:
        for worker in pool.workers:
            for share in worker.shares:
                for kind, port in _ports(worker):
                    yield f"{pool.where}.ports.{kind}", share.host.name, port, f"{worker.name} ({kind})"


def _ports(worker: Worker) -> Iterator[tuple[str, int]]:
    ports = worker.ports
    yield from (("http", ports.http), ("bootstrap", ports.bootstrap), ("nccl", ports.nccl))
    if worker.dp_attention or len(worker.shares) > 1:
        yield "dist_init", ports.dist_init
    if worker.dp_attention:
        yield from (("dist_init", ports.dist_init + counted) for counted in (*range(1, 7), HANDSHAKE))
    for flag in OTHER_PORTS:
        if isinstance(port := worker.args.get(flag), int) and not isinstance(port, bool):
            yield flag, port


def ephemeral_ports(case: Case) -> Iterator[Finding]:
    """DSG402: a port that the kernel may give to an outgoing connection first."""
    high = [(where, port, who) for where, _, port, who in _listeners(case) if port >= EPHEMERAL]
    if high:
        where, port, who = high[0]
        more = f", and {len(high) - 1} more" if len(high) > 1 else ""
        yield finding("DSG402", f"port {port} of {who}{more} is in the ephemeral range (from {EPHEMERAL})", where=where)


def loopback_advertised(case: Case) -> Iterator[Finding]:
    """DSG403: a host that others must reach is known by an address that means themselves."""
    shares = (share for worker in case.deployment.workers for share in worker.shares)
    hosts = {share.host.name: share.host for share in shares if not share.host.invented}
    inward = [host for host in hosts.values() if loopback(host.address)]
    for host in inward if len(hosts) > 1 else []:
        message = f"{host.name} ({host.address}) would be advertised to {len(hosts) - 1} other host(s)"
        yield finding("DSG403", message, where="executor.ssh.hosts")
    for pool in case.deployment.pools if len(hosts) > 1 else ():
        for name in OWN_ADDRESS:
            value = pool.worker.env.get(name, "")
            if value and (loopback(value) or value in WILDCARD):
                message = f"{name}={value} would be advertised to {len(hosts) - 1} other host(s)"
                yield finding("DSG403", message, where=case.at(pool, "env", name))


def wildcard_host(case: Case) -> Iterator[Finding]:
    """DSG404: a host is named by the address that means every address."""
    for host in {worker.host.name: worker.host for worker in case.deployment.workers}.values():
        if host.address in WILDCARD:
            yield finding("DSG404", f"{host.address} cannot be advertised to other hosts", where="executor.ssh.hosts")


def open_router(case: Case) -> Iterator[Finding]:
    """DSG405: the router listens on every address, and asks nobody who they are."""
    router = case.deployment.router
    if router.host.address in WILDCARD and not router.args.get("api-key"):
        at = bracketed(router.host.address)
        yield finding("DSG405", f"the router listens on {at}:{router.port}, for everybody", where="router.host")


def address_families(case: Case) -> Iterator[Finding]:
    """DSG406: some hosts are IPv4 addresses and some IPv6."""
    families: dict[int, str] = {}
    for worker in case.deployment.workers:
        if version := _family(worker.host.address):
            families.setdefault(version, worker.host.address)
    if len(families) > 1:
        message = f"{families[4]} is IPv4 and {families[6]} is IPv6"
        yield finding("DSG406", message, where="executor.ssh.hosts")


def wildcard_registration(case: Case) -> Iterator[Finding]:
    """DSG407: IPv6 hosts on a release that resolves addresses as IPv4 in places."""
    hosts = {worker.host.address for worker in case.deployment.workers}
    six = sorted(address for address in hosts if _family(address) == 6)
    if six and case.before("0.5.15"):
        message = f"{six[0]} is IPv6, and SGLang {case.choice.sglang} is before 0.5.15"
        yield finding("DSG407", message, where="executor.ssh.hosts")


def scoped_address(case: Case) -> Iterator[Finding]:
    """DSG408: a link-local address, which other hosts cannot use."""
    for address in dict.fromkeys(worker.host.address for worker in case.deployment.workers):
        if address.lower().startswith("fe80") and _family(address):
            message = f"{address} is link-local: it means something on one link only"
            yield finding("DSG408", message, where="executor.ssh.hosts")


def _family(address: str) -> int | None:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).version
    except ValueError:
        return None


RULES = (
    port_twice,
    ephemeral_ports,
    loopback_advertised,
    wildcard_host,
    open_router,
    address_families,
    wildcard_registration,
    scoped_address,
)
