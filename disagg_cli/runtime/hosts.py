"""The hosts of a deployment as they are: looked at before the first process, and put in place of its names for them."""

from collections.abc import Callable, Sequence
from pathlib import Path

from disagg_cli.errors import PlanRefused
from disagg_cli.executors.protocol import Executor, Site
from disagg_cli.executors.registry import make
from disagg_cli.findings.finding import Finding, Severity
from disagg_cli.findings.host_rules import judge_hosts
from disagg_cli.findings.topology_rules import kept
from disagg_cli.runtime.prepare import Prepared, model_path, on_machines, placed
from disagg_cli.runtime.rundir import RunDir, home
from disagg_cli.settings import ON_CPU, ON_GPU
from disagg_cli.topology.deployment import Deployment, Model
from disagg_cli.topology.machine import HostFacts


def executor_for(
    deployment: Deployment, directory: RunDir | None, *, warm: bool, tell: Callable[[str], None] = lambda _: None
) -> Executor:
    """The executor that the topology names; for a run, or, without its directory, to look at hosts."""
    site = Site(
        settings=deployment.executor_settings,
        run=directory.path.name if directory else "",
        logs=directory.logs if directory else Site().logs,
        warm=warm,
        timeouts=ON_CPU if deployment.platform.on_cpu else ON_GPU,
        tell=tell,
        home=home(),
    )
    return make(deployment.executor, site)


async def look_at_hosts(prepared: Prepared) -> tuple[Finding, ...]:
    """What is wrong with the hosts. Nothing is started on them, and nothing is known of those that a job will find."""
    executor = executor_for(prepared.deployment, None, warm=False)
    try:
        await executor.open()
        there = placed(prepared, await executor.place(prepared.deployment.hosts))
        return judge(there, await look(executor, there))
    finally:
        await executor.close()


async def look(executor: Executor, prepared: Prepared) -> tuple[HostFacts, ...]:
    """Facts of every host, with what this deployment wants to know of it."""
    return await executor.look(prepared.deployment.hosts, prepared.listeners(), _wanted(prepared.deployment.model))


def _wanted(model: Model) -> tuple[str, ...]:
    """What must be on every host: of a folder its config.json, as it may be there with nothing mounted on it."""
    if model.synthetic or not (path := Path(model_path(model))).is_absolute():
        return ()
    config = path / "config.json"
    return (str(config if config.exists() else path),)


def judge(prepared: Prepared, facts: Sequence[HostFacts]) -> tuple[Finding, ...]:
    """The findings about hosts that the topology does not ignore."""
    deployment = prepared.deployment
    needed = prepared.overlay or deployment.platform.on_cpu
    planned = prepared.plans[0].choice
    found = judge_hosts(deployment, facts, ports=prepared.listeners(), plugin=needed, planned=planned)
    return kept(deployment, found)[0]


def refuse(found: Sequence[Finding]) -> None:
    """PlanRefused repeats the findings that forbid a start."""
    errors = [one for one in found if one.severity is Severity.ERROR]
    if errors:
        what = "\n".join(f"{one.code} {one.message}" for one in errors)
        raise PlanRefused(what, fix="; ".join(dict.fromkeys(one.fix for one in errors)))


async def settle(executor: Executor, prepared: Prepared) -> Prepared:
    """Wait for the machines, look at them, and write the commands for them. PlanRefused says what is wrong there."""
    there = placed(prepared, await executor.place(prepared.deployment.hosts))
    facts = await look(executor, there)
    refuse(judge(there, facts))
    return on_machines(there, facts)
