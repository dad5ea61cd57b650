"""From what the user wrote to a Deployment: hosts, GPUs and ports for every worker. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from disagg_cli.errors import PlanRefused, UsageError
from disagg_cli.topology.deployment import Deployment, Host, Model, Ports, Role, Router, Share, Worker
from disagg_cli.topology.platforms import Platform, platforms
from disagg_cli.topology.spec import ModelSpec, RoleSpec, Scalar, TopologySpec
from disagg_cli.topology.synthetic import SyntheticModel

MANAGED = {
    "model-path": "model",
    "model": "model",
    "served-model-name": "model.served_name",
    "host": "executor",
    "port": "ports",
    "nccl-port": "ports",
    "dist-init-addr": "ports",
    "nnodes": "tp, pp and the platform's GPUs per node",
    "node-rank": "tp, pp and the platform's GPUs per node",
    "tp": "tp",
    "tp-size": "tp",
    "tensor-parallel-size": "tp",
    "dp": "dp",
    "dp-size": "dp",
    "data-parallel-size": "dp",
    "enable-dp-attention": "dp_attention",
    "pp": "pp",
    "pp-size": "pp",
    "pipeline-parallel-size": "pp",
    "disaggregation-mode": "prefill: and decode:",
    "disaggregation-transfer-backend": "connector.backend",
    "disaggregation-bootstrap-port": "ports",
}
"""SGLang flags that disagg sets, and the field of the topology that says them."""

BLOCK = 16
"""Ports kept for each worker on its host: http, bootstrap, nccl, dist-init, and what SGLang counts up from dist-init
with DP attention (six and one per DP rank; server_args.py, PortArgs, 0.5.23)."""


def resolve(spec: TopologySpec) -> Deployment:
    """Choose host, GPUs and ports for every worker. UsageError or PlanRefused say what does not fit."""
    platform = platforms()[spec.platform]
    hosts = _hosts(spec, platform)
    free = _Free(hosts=hosts, base_port=spec.ports, platform=platform)
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
    if (spec.path is None) == (spec.synthetic is None):
        raise UsageError("model: expected either `path` (a hub id or a folder) or `synthetic`")
    if spec.synthetic:
        synthetic = SyntheticModel(**spec.synthetic.model_dump())
        return Model(path=None, synthetic=synthetic, served_name=spec.served_name or "synthetic")
    assert spec.path is not None
    return Model(path=spec.path, synthetic=None, served_name=spec.served_name or spec.path)


def _worker(spec: TopologySpec, role: Role, index: int, pool: int, pool_spec: RoleSpec, free: "_Free") -> Worker:
    name = f"{role}-{index}"
    if pool_spec.dp_attention and pool_spec.tp % pool_spec.dp:
        raise UsageError(f"{role}: with dp_attention, tp {pool_spec.tp} must be a multiple of dp {pool_spec.dp}")
    gpus = pool_spec.tp * pool_spec.pp * (1 if pool_spec.dp_attention else pool_spec.dp)
    shares = free.place(name, gpus)
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
        args=_args(spec.engine.args, "engine") | _args(pool_spec.args, role),
        env=dict(spec.engine.env) | dict(pool_spec.env),
    )


def _args(args: dict[str, Scalar], where: str) -> dict[str, Scalar]:
    """Return flags without dashes in front, as SGLang spells them. UsageError for those that disagg sets."""
    flags = {flag.lstrip("-").replace("_", "-"): value for flag, value in args.items()}
    for flag in flags:
        if flag in MANAGED:
            raise UsageError(f"{where}.args.{flag}: disagg sets --{flag}; say it with `{MANAGED[flag]}`")
    return flags


def _router(spec: TopologySpec, host: Host, free: "_Free") -> Router:
    if spec.router.host:
        host = Host(name=host.name, address=spec.router.host, gpus=host.gpus, local=host.local)
    return Router(
        host=host,
        port=spec.router.port,
        metrics_port=free.next_port(host.name, 1),
        policy=spec.router.policy,
        args={flag.lstrip("-").replace("_", "-"): value for flag, value in spec.router.args.items()},
    )


@dataclass(kw_only=True)
class _Free:
    """What is left on each host while workers are placed in order."""

    hosts: tuple[Host, ...]
    base_port: int
    platform: Platform
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
        names = [share.host.name for share in shares]
        size = BLOCK + (dp if dp > 4 else 0)
        base = max(self.used_ports.get(name, self.base_port) for name in names)
        for name in names:
            self.used_ports[name] = base + size
        return Ports(http=base, bootstrap=base + 1, nccl=base + 2, dist_init=base + 3)

    def next_port(self, host: str, count: int) -> int:
        """The next free port of a host, outside the workers' blocks."""
        port = self.used_ports.get(host, self.base_port)
        self.used_ports[host] = port + count
        return port
