"""From what the user wrote to a Deployment: hosts, GPUs and ports for every worker. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from disagg_cli.errors import PlanRefused
from disagg_cli.topology.deployment import Deployment, Host, Model, Ports, Role, Router, Share, Worker
from disagg_cli.topology.platforms import Platform, platforms
from disagg_cli.topology.spec import ModelSpec, RoleSpec, TopologySpec
from disagg_cli.topology.synthetic import SyntheticModel

BLOCK = 16
"""Ports kept for each worker on its host: http, bootstrap, nccl, dist-init, and what SGLang counts up from dist-init
with DP attention (six and one per DP rank; server_args.py, PortArgs, 0.5.23)."""

HIGHEST_PORT = 65535


def resolve(spec: TopologySpec) -> Deployment:
    """Choose host, GPUs and ports for every worker. PlanRefused says what does not fit."""
    platform = platforms()[spec.platform]
    hosts = _hosts(spec, platform)
    free = _Free(
        hosts=hosts, base_port=spec.ports, platform=platform, router_host=hosts[0].name, router_port=spec.router.port
    )
    roles: tuple[tuple[Role, list[RoleSpec]], ...] = (("prefill", spec.prefill), ("decode", spec.decode))
    workers = tuple(
        _worker(spec, role, index, pool, pool_spec, free)
        for role, pools in roles
        for index, (pool, pool_spec) in enumerate(_each_worker(pools))
    )
    model = _model(spec.model)
    return Deployment(
        name=spec.name,
        platform=platform,
        model=model,
        workers=workers,
        router=_router(spec, hosts[0], free),
        executor="ssh" if spec.executor.ssh else "local",
        connector=spec.connector,
        probe=spec.probe,
        eval=spec.eval,
    )


def _each_worker(pools: list[RoleSpec]) -> Iterator[tuple[int, RoleSpec]]:
    for pool, pool_spec in enumerate(pools):
        for _ in range(pool_spec.workers):
            yield pool, pool_spec


def _hosts(spec: TopologySpec, platform: Platform) -> tuple[Host, ...]:
    if spec.executor.ssh:
        return tuple(
            Host(name=name, address=name.rpartition("@")[2], gpus=platform.gpus_per_node, local=False)
            for name in spec.executor.ssh.hosts
        )
    return (Host(name="localhost", address="127.0.0.1", gpus=platform.gpus_per_node, local=True),)


def _model(spec: ModelSpec) -> Model:
    if spec.synthetic:
        synthetic = SyntheticModel(**spec.synthetic.model_dump())
        return Model(path=None, synthetic=synthetic, served_name=spec.served_name or "synthetic")
    assert spec.path is not None
    return Model(path=spec.path, synthetic=None, served_name=spec.served_name or spec.path)


def _worker(spec: TopologySpec, role: Role, index: int, pool: int, pool_spec: RoleSpec, free: "_Free") -> Worker:
    name = f"{role}-{index}"
    gpus = pool_spec.tp * pool_spec.pp * (1 if pool_spec.dp_attention else pool_spec.dp)
    shares = free.place(name, gpus)
    if len(shares) > 1 and pool_spec.dp > 1 and not pool_spec.dp_attention:
        raise PlanRefused(  # SGLang's own assertion (validation_hook.py, 0.5.23), which ends every rank
            f"{name}: {pool_spec.dp} plain data-parallel replicas do not spread over {len(shares)} hosts",
            fix="ask for more workers instead of dp, or set dp_attention",
        )
    return Worker(
        name=name,
        role=role,
        pool=pool,
        tp=pool_spec.tp,
        dp=pool_spec.dp,
        dp_attention=pool_spec.dp_attention,
        pp=pool_spec.pp,
        shares=shares,
        ports=free.ports(shares, pool_spec.dp),
        args=spec.engine.args | pool_spec.args,
        env=spec.engine.env | pool_spec.env,
    )


def _router(spec: TopologySpec, host: Host, free: "_Free") -> Router:
    if spec.router.host:
        host = Host(name=host.name, address=spec.router.host, gpus=host.gpus, local=host.local)
    return Router(
        host=host,
        port=spec.router.port,
        metrics_port=free.block((host.name,), 1),
        policy=spec.router.policy,
        args=spec.router.args,
    )


@dataclass(kw_only=True)
class _Free:
    """What is left on each host while workers are placed in order."""

    hosts: tuple[Host, ...]
    base_port: int
    platform: Platform
    router_host: str
    router_port: int
    used_gpus: dict[str, int] = field(default_factory=dict)
    used_ports: dict[str, int] = field(default_factory=dict)

    def place(self, worker: str, gpus: int) -> tuple[Share, ...]:
        """Pack a worker of less than a node beside others; give a larger one whole nodes."""
        if self.platform.on_cpu:
            return (Share(host=self.hosts[0], gpus=()),)
        per_node = self.platform.gpus_per_node
        if gpus > per_node and gpus % per_node:
            raise PlanRefused(
                f"{worker} needs {gpus} GPUs, no multiple of the {per_node} GPUs of a {self.platform.name} node",
                fix="choose tp x pp to fill whole nodes",
            )
        nodes, each = max(1, gpus // per_node), min(gpus, per_node)
        free = [host for host in self.hosts if per_node - self.used_gpus.get(host.name, 0) >= each]
        if len(free) < nodes:
            raise PlanRefused(
                f"{worker} needs {gpus} GPUs on {nodes} host(s) of {per_node}; "
                f"{len(free)} of {len(self.hosts)} host(s) have room for it",
                fix="name more hosts under executor.ssh.hosts, or ask for fewer workers or a smaller tp",
            )
        return tuple(self._take(host, each) for host in free[:nodes])

    def _take(self, host: Host, count: int) -> Share:
        first = self.used_gpus.get(host.name, 0)
        self.used_gpus[host.name] = first + count
        return Share(host=host, gpus=tuple(range(first, first + count)))

    def ports(self, shares: tuple[Share, ...], dp: int) -> Ports:
        """The same block on every host of a worker: before SGLang 0.5.12 the bootstrap port must be equal on all."""
        base = self.block(tuple(share.host.name for share in shares), BLOCK + (dp if dp > 4 else 0))
        return Ports(http=base, bootstrap=base + 1, nccl=base + 2, dist_init=base + 3)

    def block(self, hosts: tuple[str, ...], size: int) -> int:
        """The first of `size` ports that are free on all these hosts."""
        first = max(self.used_ports.get(name, self.base_port) for name in hosts)
        if self.router_host in hosts and first <= self.router_port < first + size:
            first = self.router_port + 1
        if first + size > HIGHEST_PORT:
            raise PlanRefused(f"out of ports on {hosts[0]}", fix="start lower: `ports`, or name more hosts")
        self.used_ports |= dict.fromkeys(hosts, first + size)
        return first
