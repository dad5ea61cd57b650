"""Everything that is decided before the first process: the deployment, its plan, its command lines."""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from disagg_cli.connector import overlay, witness
from disagg_cli.connector.releases import choose_release
from disagg_cli.engine import aggregated
from disagg_cli.engine.commands import Command, Machine, Machines, router_command, worker_commands
from disagg_cli.errors import PlanRefused, UsageError
from disagg_cli.findings.finding import Finding, Severity
from disagg_cli.findings.report import PlanReport, report_plan
from disagg_cli.findings.topology_report import judge_everything
from disagg_cli.findings.topology_rules import kept
from disagg_cli.kv.layout import KVLayout
from disagg_cli.kv.models import layout_for, layout_from_config
from disagg_cli.kv.parallelism import Parallelism
from disagg_cli.runtime import rundir
from disagg_cli.secrets import masked, masked_flags
from disagg_cli.topology.deployment import Deployment, Host, Model, Role, Worker, on_hosts
from disagg_cli.topology.loading import load_topology
from disagg_cli.topology.machine import Facts, HostFacts, gather
from disagg_cli.topology.placement import HANDSHAKE
from disagg_cli.topology.resolve import resolve
from disagg_cli.topology.spec import EvalSpec, GsmSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """A deployment that is planned and judged, with the commands that would start it."""

    config: Path
    deployment: Deployment
    plans: tuple[PlanReport, ...]
    workers: tuple[Command, ...]
    router: Command
    findings: tuple[Finding, ...] = ()
    aggregated: Command | None = None
    aggregated_tp: int | None = None

    @property
    def commands(self) -> tuple[Command, ...]:
        """All commands, in the order in which a person would type them."""
        return (*self.workers, self.router, *([self.aggregated] if self.aggregated else []))

    @property
    def urls(self) -> dict[str, str]:
        """Where each process answers HTTP: name -> URL."""
        urls = {worker.name: worker.url for worker in self.deployment.workers}
        urls["router"] = self.deployment.router.url
        return urls | ({aggregated.NAME: aggregated.url(self.deployment)} if self.aggregated else {})

    @property
    def errors(self) -> tuple[Finding, ...]:
        """Findings that forbid a start."""
        return tuple(found for found in self.findings if found.severity is Severity.ERROR)

    @property
    def overlay(self) -> bool:
        """Whether the plan counts on the overlay."""
        return any(plan.overlay for plan in self.plans)

    def listeners(self) -> dict[Host, dict[int, str]]:
        """What will listen at the address of each host: host -> port -> who."""
        router = self.deployment.router
        wanted: dict[Host, dict[int, str]] = {
            router.host: {router.port: "router", router.metrics_port: "router metrics"}
        }
        for worker in self.deployment.workers:
            listens = {"http": worker.ports.http}
            if worker.dp == 1 or worker.dp_attention:
                listens["nccl"] = worker.ports.nccl
            if worker.role == "prefill":
                listens["bootstrap"] = worker.ports.bootstrap
            if worker.dp_attention or len(worker.shares) > 1:
                listens["dist-init"] = worker.ports.dist_init
            if worker.dp_attention:
                listens["DP handshake"] = worker.ports.dist_init + HANDSHAKE
            for share in worker.shares:
                here = wanted.setdefault(share.host, {})
                here |= {port: f"{worker.name} {what}" for what, port in listens.items()}
        if self.aggregated:
            port = aggregated.port(self.deployment)
            wanted[self.aggregated.host] |= {port: "aggregated http", port + 1: "aggregated nccl"}
        return wanted

    def ports(self) -> set[str]:
        """What another launch must not have at the same time.

        The hosts of a Slurm job are its own: only in an allocation that is there already another launch may meet them.
        Each cluster counts its jobs from one.
        """
        around = ""
        if self.deployment.executor == "slurm":
            if not (job := os.environ.get("SLURM_JOB_ID")):
                return set()
            around = f"job {job}@{os.environ.get('SLURM_CLUSTER_NAME', '')}:"
        return {
            str(port) if host.local else f"{around}{host.name}:{port}"
            for host, ports in self.listeners().items()
            for port in ports
        }

    def document(self) -> dict[str, Any]:
        """The deployment as JSON, for deployment.json and --dry-run."""
        return {
            "schema": "disagg.deployment/1",
            "config": str(self.config),
            "name": self.deployment.name,
            "platform": self.deployment.platform.name,
            "model": self.deployment.model.name,
            "synthetic": self.deployment.model.synthetic is not None,
            "executor": self.deployment.executor,
            "executor_settings": dict(self.deployment.executor_settings),
            "router": self.deployment.router.url,
            "probe": {"timeout_s": self.deployment.probe.timeout_s},
            "processes": [command.document() for command in self.commands],
            "workers": [
                asdict(worker) | {"url": worker.url, "env": masked(worker.env), "args": masked_flags(worker.args)}
                for worker in self.deployment.workers
            ],
        }

    def plan_document(self) -> dict[str, Any]:
        """The plan as JSON; several prefill pools give several plans."""
        if len(self.plans) == 1:
            return self.plans[0].document()
        return {
            "schema": "disagg.plans/1",
            "plans": [plan.document() for plan in self.plans],
            "ok": all(plan.ok for plan in self.plans),
        }


def prepare(
    config: Path, *, variant: str | None = None, sets: Sequence[str] = (), unsets: Sequence[str] = ()
) -> Prepared:
    """Load, resolve, plan and judge a topology. UsageError or PlanRefused say what is wrong with it."""
    return prepare_deployment(config, resolve(load_topology(config, variant=variant, sets=sets, unsets=unsets)))


def prepare_deployment(config: Path, deployment: Deployment) -> Prepared:
    """Plan and judge a deployment that was resolved from `config`, as `disagg check` does."""
    facts = gather()
    plans = _plans(deployment, facts)
    if any(plan.overlay for plan in plans):
        deployment = with_env(deployment, "prefill", {overlay.ENABLE: "1"})
    deployment = with_env(deployment, "decode", {witness.ENABLE: "1"})
    machines = _guess(deployment)
    return Prepared(
        config=config,
        deployment=deployment,
        plans=plans,
        findings=kept(deployment, judge_everything(deployment, facts))[0],
        workers=_workers(deployment, machines),
        router=router_command(deployment, machines=machines),
    )


def _workers(deployment: Deployment, machines: Machines) -> tuple[Command, ...]:
    path = model_path(deployment.model)
    return tuple(
        command
        for worker in deployment.workers
        for command in worker_commands(deployment, worker, model_path=path, machines=machines)
    )


def placed(prepared: Prepared, machines: Mapping[str, Host]) -> Prepared:
    """The same on these machines in place of hosts of the deployment, by name. The commands are still the old ones."""
    return replace(prepared, deployment=on_hosts(prepared.deployment, machines)) if machines else prepared


def on_machines(prepared: Prepared, facts: Iterable[HostFacts]) -> Prepared:
    """The same with commands for the machines as they are. Where nothing is known of them, they are guessed."""
    known = {host.host: Machine(python=host.python, cores=host.cores or (0,), package=host.package) for host in facts}
    guess = _guess(prepared.deployment)

    def machines(host: Host) -> Machine:
        return known.get(host.name) or guess(host)

    return replace(
        prepared,
        workers=_workers(prepared.deployment, machines),
        router=router_command(prepared.deployment, machines=machines),
        aggregated=_aggregated(prepared.deployment, machines, prepared.aggregated_tp) if prepared.aggregated else None,
    )


def with_gsm8k(prepared: Prepared) -> Prepared:
    """The same, with a GSM8K eval where the topology names none: the built-in questions for random weights."""
    deployment = prepared.deployment
    if deployment.eval.gsm8k:
        return prepared
    dataset: Literal["mini", "gsm8k"] = "mini" if deployment.model.synthetic else "gsm8k"
    spec = EvalSpec(gsm8k=GsmSpec(dataset=dataset))
    return replace(prepared, deployment=replace(deployment, eval=spec))


def with_aggregated(prepared: Prepared, *, tp: int | None = None) -> Prepared:
    """The same, with an aggregated server beside it, of a decode worker's TP unless another is given.

    UsageError where there is no room, or nothing to ask.
    """
    deployment = prepared.deployment
    if deployment.eval.gsm8k is None:
        raise UsageError("--against-aggregated has nothing to ask: the topology names no eval", fix="add --eval gsm8k")
    return replace(prepared, aggregated=_aggregated(deployment, _guess(deployment), tp), aggregated_tp=tp)


def _aggregated(deployment: Deployment, machines: Machines, tp: int | None) -> Command:
    path = model_path(deployment.model)
    return aggregated.aggregated_command(deployment, model_path=path, machines=machines, tp=tp)


def with_env(deployment: Deployment, role: Role, env: Mapping[str, str]) -> Deployment:
    """The deployment with some more environment for the workers of a role."""
    workers = tuple(
        replace(worker, env={**worker.env, **env}) if worker.role == role else worker for worker in deployment.workers
    )
    return replace(deployment, workers=workers)


def model_path(model: Model) -> str:
    """What servers load: the path or hub id as written, or where the synthetic model is, or will be, cached."""
    if model.synthetic:
        return str(rundir.cache() / "synthetic" / model.synthetic.key)
    assert model.path
    return model.path


def refuse_errors(errors: Sequence[Finding], *, force: bool) -> None:
    """Stop a launch that its plan forbids. PlanRefused repeats each finding with its fix."""
    if errors and not force:
        raise PlanRefused(
            "the plan forbids this launch: " + "; ".join(f"{f.code} {f.message}" for f in errors),
            where=", ".join(dict.fromkeys(f.where for f in errors)),
            fix="; ".join(dict.fromkeys(f.fix for f in errors)) + " (or --force, to start it all the same)",
        )


def _guess(deployment: Deployment) -> Machines:
    """What machines are taken to be before anybody has looked at them."""
    here = Machine(python=sys.executable, cores=tuple(sorted(os.sched_getaffinity(0))))
    elsewhere = Machine(python=str(deployment.executor_settings.get("python") or "python3"))
    return lambda host: here if host.local else elsewhere


def _plans(deployment: Deployment, facts: Facts) -> tuple[PlanReport, ...]:
    layout = layout_of(deployment.model)
    choice = choose_release(deployment.sglang, installed=facts.installed)
    decode = _pools(deployment, "decode")
    wanted = deployment.connector.overlay
    return tuple(
        report_plan(layout, prefill, decode, choice, overlay=wanted) for prefill in _pools(deployment, "prefill")
    )


def layout_of(model: Model) -> KVLayout:
    """How a model keeps its KV. UsageError where that is not known."""
    if model.synthetic:
        return layout_from_config(model.synthetic.config(), name="synthetic")
    assert model.path
    return layout_for(model.path)


def _pools(deployment: Deployment, role: Role) -> list[Parallelism]:
    """Each different way in which workers of a role are divided, once."""
    return list(dict.fromkeys(parallelism(worker) for worker in deployment.role(role)))


def parallelism(worker: Worker) -> Parallelism:
    """How a worker's ranks are divided, as the plan wants it."""
    return Parallelism(tp=worker.tp, dp=worker.dp, pp=worker.pp, dp_attention=worker.dp_attention)
