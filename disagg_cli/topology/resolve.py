"""From what the user wrote to a Deployment: hosts, GPUs and ports for every worker. Pure."""

from collections.abc import Iterator

from disagg_cli.errors import PlanRefused
from disagg_cli.topology.deployment import Deployment, Host, Misfit, Model, Pool, Role, Router, Worker
from disagg_cli.topology.hosts import hosts_of, used
from disagg_cli.topology.placement import BLOCK, HIGHEST_PORT, Room
from disagg_cli.topology.platforms import Platform, platforms
from disagg_cli.topology.spec import ModelSpec, RoleSpec, TopologySpec
from disagg_cli.topology.synthetic import SyntheticModel

__all__ = ["BLOCK", "HIGHEST_PORT", "draft", "resolve"]


def resolve(spec: TopologySpec) -> Deployment:
    """Choose host, GPUs and ports for every worker. PlanRefused says what does not fit."""
    deployment = draft(spec)
    if deployment.misfits:
        first = deployment.misfits[0]
        raise PlanRefused(first.said, where=str(deployment.places.at(first.where)), fix=first.fix)
    return deployment


def draft(spec: TopologySpec) -> Deployment:
    """The same, with what does not fit in `misfits`, and such workers on hosts that are not there."""
    platform = platforms()[spec.platform]
    hosts = hosts_of(spec, platform)
    drafted = _draft(spec, platform, hosts)
    if spec.executor.slurm and not drafted.misfits and len(drafted.hosts) < len(hosts):
        # A job asks for what is used; and how nodes share NVLink domains depends on how many there are.
        again = _draft(spec, platform, hosts_of(spec, platform, used(drafted)))
        return drafted if again.misfits else again
    return drafted


def _draft(spec: TopologySpec, platform: Platform, hosts: tuple[Host, ...]) -> Deployment:
    rooms = _rooms(spec, platform, hosts)
    pools = tuple(_pool(spec, role, index, rooms[role]) for role, index in _pools(spec))
    return Deployment(
        name=spec.name,
        platform=platform,
        model=_model(spec.model),
        workers=tuple(worker for pool in pools for worker in pool.workers),
        router=_router(spec, hosts[0], rooms["prefill"]),
        executor=spec.executor.kind,
        executor_settings=spec.executor.settings,
        connector=spec.connector,
        probe=spec.probe,
        restart=spec.restart,
        eval=spec.eval,
        pools=pools,
        sglang=spec.engine.sglang,
        select_gpus=spec.engine.select_gpus,
        ignore=dict(spec.ignore),
        places=spec.places,
        misfits=tuple(rooms["prefill"].misfits),
        written=spec.written,
    )


def _rooms(spec: TopologySpec, platform: Platform, hosts: tuple[Host, ...]) -> dict[Role, Room]:
    """The hosts that a role may use: all of them, or those of its own component of a heterogeneous Slurm job."""
    misfits: list[Misfit] = []
    rooms = [
        Room(
            hosts=tuple(host for host in hosts if host.group == group),
            base_port=spec.ports,
            platform=platform,
            router_host=hosts[0].name,
            router_port=spec.router.port,
            executor=spec.executor.kind,
            misfits=misfits,
        )
        for group in sorted({host.group for host in hosts})
    ]
    return {"prefill": rooms[0], "decode": rooms[-1]}


def _pools(spec: TopologySpec) -> Iterator[tuple[Role, int]]:
    roles: tuple[Role, ...] = ("prefill", "decode")
    for role in roles:
        yield from ((role, index) for index in range(len(getattr(spec, role))))


def _model(spec: ModelSpec) -> Model:
    if spec.synthetic:
        synthetic = SyntheticModel(**spec.synthetic.model_dump())
        return Model(path=None, synthetic=synthetic, served_name=spec.served_name or "synthetic")
    assert spec.path is not None
    return Model(path=spec.path, synthetic=None, served_name=spec.served_name or spec.path)


def _pool(spec: TopologySpec, role: Role, index: int, room: Room) -> Pool:
    pools: list[RoleSpec] = getattr(spec, role)
    pool = pools[index]
    where = role if len(pools) == 1 else f"{role}[{index}]"
    first = sum(before.workers for before in pools[:index])
    if pool.place is not None and len(pool.place) != pool.workers:
        what = f"{where} places {len(pool.place)} of {pool.workers} workers"
        room.refuse("DSG307", f"{where}.place", what, "name one place per worker")
    workers = tuple(_worker(spec, role, index, where, first + n, n, room) for n in range(pool.workers))
    return Pool(role=role, index=index, where=where, workers=workers, gpus=pool.gpus, nodes=pool.nodes)


def _worker(spec: TopologySpec, role: Role, pool: int, where: str, number: int, nth: int, room: Room) -> Worker:
    name = f"{role}-{number}"
    asked: RoleSpec = getattr(spec, role)[pool]
    gpus = asked.ranks
    named = asked.place[nth] if asked.place and nth < len(asked.place) else None
    shares = room.put(name, where, named, gpus) if named else room.place(name, f"{where}.tp", gpus)
    if len(shares) > 1 and asked.dp > 1 and not asked.dp_attention:
        # SGLang's own assertion (validation_hook.py, 0.5.23), which ends every rank
        what = f"{name}: {asked.dp} plain data-parallel replicas do not spread over {len(shares)} hosts"
        fix = "ask for more workers instead of dp, or set dp_attention"
        room.refuse("DSG308", f"{where}.dp", what, fix)
    return Worker(
        name=name,
        role=role,
        pool=pool,
        tp=asked.tp,
        dp=asked.dp,
        dp_attention=asked.dp_attention,
        pp=asked.pp,
        shares=shares,
        ports=room.ports(where, shares, asked.dp, asked.ports),
        args=spec.engine.args | asked.args,
        env=spec.engine.env | asked.env,
    )


def _router(spec: TopologySpec, host: Host, room: Room) -> Router:
    metrics = room.block("router", (host.name,), 1)
    if spec.router.host:
        host = Host(name=host.name, address=spec.router.host, gpus=host.gpus, local=host.local, domain=host.domain)
    return Router(
        host=host, port=spec.router.port, metrics_port=metrics, policy=spec.router.policy, args=spec.router.args
    )
