"""Workers onto hosts, GPUs and ports, in the order in which they are written. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from disagg_cli.topology.deployment import Host, Misfit, Ports, Share
from disagg_cli.topology.platforms import Platform
from disagg_cli.topology.spec import PortsSpec

BLOCK = 16
"""Ports kept for each worker on its host: http, bootstrap, nccl, dist-init, and with DP more, see `dp_ports`."""

HANDSHAKE = 13
"""From dist-init to the port at which DP groups meet (SGLang 0.5.23, DP_ATTENTION_HANDSHAKE_PORT_DELTA)."""


def dp_ports(dp: int) -> int:
    """Ports to keep beside BLOCK for what SGLang counts up from dist-init with so many DP groups.

    Six and one for each group (server_args.py, PortArgs, 0.5.23), and the one at which they meet. Whoever asks a
    neighbour's port for its health there makes libzmq abort the server.
    """
    return max(4, dp) if dp > 1 else 0


HIGHEST_PORT = 65535

MOST_NODES = 4096
ALIKE = ("DSG301", "DSG302", "DSG309")
"""Misfits that the other workers of a pool repeat."""

ROOM = {
    "ssh": "name more hosts under executor.ssh.hosts, or ask for fewer workers or a smaller tp",
    "slurm": "ask for more executor.slurm.nodes (or leave them out), or for fewer workers or a smaller tp",
    "local": "ask for fewer workers or a smaller tp, or name hosts: executor: {ssh: {hosts: [a, b]}}",
}
"""What to do where there is no room, by executor."""


@dataclass(kw_only=True)
class Room:
    """What is left on each host. misfits: what was asked for and is not there."""

    hosts: tuple[Host, ...]
    base_port: int
    platform: Platform
    router_host: str
    router_port: int
    executor: str = "local"
    used_gpus: dict[str, set[int]] = field(default_factory=dict)
    used_ports: dict[str, int] = field(default_factory=dict)
    misfits: list[Misfit] = field(default_factory=list)
    full: int = 0
    placed: int = 0

    def refuse(self, code: str, where: str, what: str, fix: str) -> None:
        """Keep what does not fit: once for workers of one pool that do not fit for the same reason."""
        misfit = Misfit(code=code, where=where, what=what, fix=fix)
        if self.misfits and code in ALIKE and (self.misfits[-1].code, self.misfits[-1].where) == (code, where):
            self.misfits[-1] = replace(self.misfits[-1], more=self.misfits[-1].more + 1)
        else:
            self.misfits.append(misfit)

    def place(self, worker: str, where: str, gpus: int) -> tuple[Share, ...]:
        """Pack a worker of less than a node beside others; give a larger one whole nodes, of one domain if they do."""
        if self.platform.on_cpu:
            return (Share(host=self._in_turn(), gpus=()),)
        per_node = self.platform.gpus_per_node
        nodes, each = min(MOST_NODES, -(-gpus // per_node)), min(gpus, per_node)
        if gpus > per_node and gpus % per_node:
            what = f"{worker} needs {gpus} GPUs, no multiple of the {per_node} GPUs of a {self.platform.name} node"
            self.refuse("DSG302", where, what, "choose tp x pp to fill whole nodes")
            return self._invented(worker, nodes, each)
        if nodes == 1 and (first := next((host for host in self._open() if len(self._free(host)) >= each), None)):
            return (self._take(first, self._free(first)[:each]),)
        free = [host for host in self.hosts if len(self._free(host)) >= each]
        if len(free) < nodes:
            on = f"{gpus} GPU{'s' if gpus > 1 else ''} on {nodes} host{'s' if nodes > 1 else ''} of {per_node}"
            what = f"{worker} needs {on}; {len(free)} of {len(self.hosts)} have room for it"
            self.refuse("DSG301", where, what, ROOM.get(self.executor, ROOM["ssh"]))
            return self._invented(worker, nodes, each)
        return tuple(self._take(host, self._free(host)[:each]) for host in _together(free, nodes))

    def put(self, worker: str, where: str, asked: Mapping[str, list[int]], gpus: int) -> tuple[Share, ...]:
        """Place a worker where the topology says."""
        by_name = {host.name: host for host in self.hosts}
        for name, indices in asked.items():
            self._judge_request(worker, f"{where}.place", name, indices, by_name)
        if not self.platform.on_cpu and (total := sum(len(indices) for indices in asked.values())) != gpus:
            what = f"{worker} needs {gpus} GPUs and is placed on {total}"
            self.refuse("DSG307", f"{where}.place", what, "name as many GPUs as ranks")
        elif len({len(indices) for indices in asked.values()}) > 1:
            shares = ", ".join(f"{len(indices)} of {name}" for name, indices in asked.items())
            what = f"{worker} is placed on {shares}, and SGLang gives each host as many ranks"
            self.refuse("DSG307", f"{where}.place", what, "name as many GPUs of each host")
        return tuple(self._take(by_name.get(name) or self._unknown(name), indices) for name, indices in asked.items())

    def _judge_request(
        self, worker: str, where: str, name: str, indices: list[int], by_name: Mapping[str, Host]
    ) -> None:
        what = None
        host = by_name.get(name)
        if host is None:
            what = f"{worker} is placed on {name}, which is none of the hosts ({', '.join(by_name)})"
        elif beyond := [gpu for gpu in indices if gpu >= host.gpus]:
            what = f"{worker} is placed on GPU {beyond[0]} of {name}, which has {host.gpus or 'none'}"
        elif taken := sorted(set(indices) & self.used_gpus.get(name, set())) or [
            gpu for gpu in indices if indices.count(gpu) > 1
        ]:
            what = f"{worker} is placed on GPU {taken[0]} of {name}, which is taken"
        if what:
            self.refuse("DSG307", where, what, "give each worker GPUs of its own")

    def _unknown(self, name: str) -> Host:
        return Host(name=name, address=name, gpus=self.platform.gpus_per_node, local=False, invented=True)

    def _in_turn(self) -> Host:
        """CPUs are not given away: workers go to one host after another."""
        self.placed += 1
        return self.hosts[(self.placed - 1) % len(self.hosts)]

    def _open(self) -> Iterator[Host]:
        """The hosts from the first on that is not full: small workers fill them in order."""
        while self.full < len(self.hosts) and not self._free(self.hosts[self.full]):
            self.full += 1
        yield from self.hosts[self.full :]

    def _free(self, host: Host) -> list[int]:
        return [gpu for gpu in range(host.gpus) if gpu not in self.used_gpus.get(host.name, set())]

    def _take(self, host: Host, gpus: list[int]) -> Share:
        self.used_gpus.setdefault(host.name, set()).update(gpus)
        return Share(host=host, gpus=tuple(gpus))

    def _invented(self, worker: str, nodes: int, each: int) -> tuple[Share, ...]:
        """Hosts that are not there, so that everything else about the worker can still be judged."""
        names = [f"(no room for {worker})" + (f" {n}" if n else "") for n in range(nodes)]
        gpus = self.platform.gpus_per_node
        return tuple(
            Share(host=Host(name=n, address=n, gpus=gpus, local=False, invented=True), gpus=tuple(range(each)))
            for n in names
        )

    def ports(self, where: str, shares: tuple[Share, ...], dp: int, asked: PortsSpec) -> Ports:
        """The same block on every host of a worker: before SGLang 0.5.12 the bootstrap port must be equal on all."""
        base = self.block(where, tuple(share.host.name for share in shares), BLOCK + dp_ports(dp))
        return Ports(
            http=asked.http or base,
            bootstrap=asked.bootstrap or base + 1,
            nccl=asked.nccl or base + 2,
            dist_init=asked.dist_init or base + 3,
        )

    def block(self, where: str, hosts: tuple[str, ...], size: int) -> int:
        """The first of `size` ports that are free on all these hosts."""
        first = max(self.used_ports.get(name, self.base_port) for name in hosts)
        if self.router_host in hosts and first <= self.router_port < first + size:
            first = self.router_port + 1
        if first + size > HIGHEST_PORT:
            self.refuse("DSG309", where, f"out of ports on {hosts[0]}", "start lower: `ports`, or name more hosts")
            return self.base_port
        self.used_ports |= dict.fromkeys(hosts, first + size)
        return first


def _together(free: list[Host], nodes: int) -> list[Host]:
    """The first hosts that do, of one NVLink domain if one has enough of them."""
    domains: dict[int | None, list[Host]] = {}
    for host in free:
        domains.setdefault(host.domain, []).append(host)
    for inside in domains.values():
        if len(inside) >= nodes:
            return inside[:nodes]
    return free[:nodes]
