"""A topology with every choice made: which worker runs where, on which GPUs and ports. Frozen values, no behaviour."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from disagg_cli.topology.places import Places
from disagg_cli.topology.platforms import Platform
from disagg_cli.topology.spec import ConnectorSpec, EvalSpec, ProbeSpec, RestartSpec
from disagg_cli.topology.synthetic import SyntheticModel
from disagg_cli.topology.values import FlagValue

Role = Literal["prefill", "decode"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """A machine. address: what other hosts, and the servers' own sockets, use. gpus: how many it has.

    domain: which NVLink domain it is in, counted from 0. group: its component of a heterogeneous Slurm job. invented:
    it stands for one that there is no room on.
    """

    name: str
    address: str
    gpus: int
    local: bool
    domain: int | None = None
    group: int = 0
    invented: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """One worker's part of one host: its GPU indices there, empty on CPUs."""

    host: Host
    gpus: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ports:
    """What a worker listens on. dist_init is used only where ranks meet over TCP (DP attention, several hosts)."""

    http: int
    bootstrap: int
    nccl: int
    dist_init: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Worker:
    """One SGLang server: one process per share, the first being the leader that answers HTTP."""

    name: str
    role: Role
    pool: int
    tp: int
    dp: int
    dp_attention: bool
    pp: int
    shares: tuple[Share, ...]
    ports: Ports
    args: Mapping[str, FlagValue] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def host(self) -> Host:
        """The host that answers HTTP."""
        return self.shares[0].host

    @property
    def url(self) -> str:
        """Where the worker answers HTTP."""
        return f"http://{bracketed(self.host.address)}:{self.ports.http}"

    @property
    def processes(self) -> tuple[str, ...]:
        """The names of its processes, as of its shares."""
        return (self.name, *(f"{self.name}.{rank}" for rank in range(1, len(self.shares))))

    @property
    def ranks(self) -> int:
        """How many ranks, and so GPUs, the worker has over all hosts. Plain DP makes whole replicas."""
        return self.tp * self.pp * (1 if self.dp_attention else self.dp)


@dataclass(frozen=True, kw_only=True, slots=True)
class Pool:
    """Equal workers, as the topology names them. where: `decode`, or `decode[1]` where there are several pools.

    gpus and nodes: how many each worker, and all of them, were said to have.
    """

    role: Role
    index: int
    where: str
    workers: tuple[Worker, ...]
    gpus: int | None = None
    nodes: int | None = None

    @property
    def worker(self) -> Worker:
        """One of the workers: they are all alike."""
        return self.workers[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class Misfit:
    """A worker that cannot be placed as asked: the code of the finding, what does not fit, and what to do.

    more: how many workers beside it do not fit for the same reason.
    """

    code: str
    where: str
    what: str
    fix: str
    more: int = 0

    @property
    def said(self) -> str:
        """What does not fit, and how often."""
        others = f" (and {self.more:,} more worker{'s' if self.more > 1 else ''})"
        return self.what + (others if self.more else "")


@dataclass(frozen=True, kw_only=True, slots=True)
class Router:
    """The sglang-router. host: the address that it binds."""

    host: Host
    port: int
    metrics_port: int
    policy: str
    args: Mapping[str, FlagValue]

    @property
    def url(self) -> str:
        """Where clients send requests."""
        return f"http://{bracketed(self.host.address)}:{self.port}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """What is served: a path or hub id, or a synthetic model."""

    path: str | None
    synthetic: SyntheticModel | None
    served_name: str

    @property
    def name(self) -> str:
        """What to call it on screen."""
        return self.path or self.served_name


@dataclass(frozen=True, kw_only=True, slots=True)
class Deployment:
    """One prefill/decode deployment, resolved.

    executor: the kind of place that its hosts are in, and what the topology says of it beside.
    sglang: the release on its hosts, where the topology names one. misfits: what could not be placed; a deployment
    that is to be started has none. ignore: codes of findings that are meant, with the reasons.
    written: the topology that it was resolved from, with bases, variant and changes applied.
    """

    name: str
    platform: Platform
    model: Model
    workers: tuple[Worker, ...]
    router: Router
    executor: str
    connector: ConnectorSpec
    probe: ProbeSpec
    eval: EvalSpec
    executor_settings: Mapping[str, Any] = field(default_factory=dict)
    restart: RestartSpec = field(default_factory=RestartSpec)
    pools: tuple[Pool, ...] = ()
    sglang: str | None = None
    select_gpus: str = "visible_devices"
    ignore: Mapping[str, str] = field(default_factory=dict)
    places: Places = field(default_factory=Places)
    misfits: tuple[Misfit, ...] = ()
    written: Mapping[str, Any] = field(default_factory=dict)

    @property
    def api_key(self) -> str | None:
        """What clients have to show: the key that the router asks for and hands on, or else that of the workers."""
        keys = [args.get("api-key") for args in (self.router.args, *(worker.args for worker in self.workers))]
        return next((str(key) for key in keys if key), None)

    def role(self, role: Role) -> tuple[Worker, ...]:
        """The workers of one role, in order."""
        return tuple(worker for worker in self.workers if worker.role == role)

    @property
    def hosts(self) -> tuple[Host, ...]:
        """Every host that something runs on, once, in the order of the workers."""
        found = {share.host.name: share.host for worker in self.workers for share in worker.shares}
        return tuple((found | {self.router.host.name: found.get(self.router.host.name, self.router.host)}).values())

    @property
    def pairs(self) -> tuple[tuple[Worker, Worker], ...]:
        """Every prefill x decode pair: each of them may be asked to move KV."""
        return tuple((p, d) for p in self.role("prefill") for d in self.role("decode"))


def on_hosts(deployment: Deployment, machines: Mapping[str, Host]) -> Deployment:
    """The deployment with these machines in place of some of its hosts, by name. Its ports and GPUs stay."""

    def moved(worker: Worker) -> Worker:
        shares = (replace(share, host=machines.get(share.host.name, share.host)) for share in worker.shares)
        return replace(worker, shares=tuple(shares))

    before = deployment.router.host
    host = machines.get(before.name, before)
    named = {share.host.name: share.host for worker in deployment.workers for share in worker.shares}
    if before.name in named and before.address != named[before.name].address:
        host = replace(host, address=before.address)  # `router.host` says what to bind
    return replace(
        deployment,
        workers=tuple(moved(worker) for worker in deployment.workers),
        pools=tuple(replace(pool, workers=tuple(map(moved, pool.workers))) for pool in deployment.pools),
        router=replace(deployment.router, host=host),
    )


def bracketed(address: str) -> str:
    """Return an address as URLs want it: IPv6 in brackets."""
    return f"[{address}]" if ":" in address else address
