"""Drills: launch with a fault planted in the connector, and see whether the proof of readiness finds it."""

import json
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from disagg_cli.connector.faults.catalogue import ENABLE, FAULTS, Fault, idle, named
from disagg_cli.errors import DisaggError, Interrupted, ProbeFailed, UsageError
from disagg_cli.evals.compare import Comparison
from disagg_cli.evals.report import EvalReport
from disagg_cli.executors.warm import SHARED_PARENT, WarmExecutor
from disagg_cli.findings.report import PlanReport
from disagg_cli.runtime import rundir
from disagg_cli.runtime.launch import Launch, Options, check_machine, record
from disagg_cli.runtime.prepare import prepare_deployment, with_env
from disagg_cli.runtime.reservation import reserved
from disagg_cli.runtime.rundir import RunDir
from disagg_cli.topology.deployment import Deployment
from disagg_cli.topology.loading import load_topology
from disagg_cli.topology.resolve import resolve
from disagg_cli.topology.spec import EvalSpec

HEALTHY = "none"


@dataclass(frozen=True, kw_only=True, slots=True)
class Drill:
    """One launch with one fault. found: what the proof said; cause: why; seconds: from its first request to that.

    shown: how the pairs named in `pairs` failed: hang, wrong, late or refused; proven where none did, and idle where
    the fault has nothing to act on in this topology, so that nothing was launched.
    """

    fault: str
    what: str
    expected: str
    found: str
    cause: str
    shown: str
    pairs: tuple[str, ...]
    seconds: float
    ok: bool
    run: str

    def document(self) -> dict[str, Any]:
        """The drill as JSON."""
        return asdict(self)


class _Silent:
    """Shows nothing: what a drill finds stands in its table."""

    def report(self, report: EvalReport) -> None:
        """Drills run no eval."""

    def comparison(self, comparison: Comparison) -> None:
        """Drills compare nothing."""

    def serving(self) -> None:
        """Drills do not serve."""


async def run_drills(
    config: Path, names: list[str], timeout_s: float, done: Callable[[Drill], None]
) -> tuple[Drill, ...]:
    """Launch without a fault, then with each of these faults (all of them where none is named).

    Each pair has `timeout_s` seconds for each answer: a fault that hangs is found after it. UsageError for a name of no
    fault, or of one that this topology gives nothing to act on.
    """
    deployment = resolve(load_topology(config))
    if not deployment.platform.on_cpu:
        raise UsageError(f"drills run on CPUs, not on {deployment.platform.name}", where=str(config))
    chosen = named(names) if names else FAULTS
    plans = prepare_deployment(config, deployment).plans
    useless = {fault.name: why for fault in chosen if (why := idle_everywhere(fault, plans))}
    if names and useless:
        raise UsageError(
            "; ".join(f"{name} would show nothing: {why}" for name, why in useless.items()), where=str(config)
        )
    drills = []
    async with _shared_parent():
        for fault in (None, *chosen):
            if fault and fault.name in useless:
                drills.append(_idle(fault, useless[fault.name]))
            else:
                drills.append(await _drill(config, deployment, fault, timeout_s))
            done(drills[-1])
    return tuple(drills)


def idle_everywhere(fault: Fault, plans: Sequence[PlanReport]) -> str | None:
    """Why a fault has nothing to act on between any prefill and any decode of these plans; None where it has."""
    whys = [idle(fault, pool.plan) for plan in plans for pool in plan.pools if pool.plan]
    return whys[0] if whys and all(whys) else None


def _idle(fault: Fault, why: str) -> Drill:
    return Drill(
        fault=fault.name,
        what=fault.what,
        expected="idle",
        found=why,
        cause="",
        shown="idle",
        pairs=(),
        seconds=0.0,
        ok=True,
        run="",
    )


async def _drill(config: Path, deployment: Deployment, fault: Fault | None, timeout_s: float) -> Drill:
    planted = with_env(deployment, "prefill", {ENABLE: fault.name} if fault else {})
    probe = deployment.probe.model_copy(update={"parity": True, "timeout_s": timeout_s})
    prepared = prepare_deployment(config, replace(planted, probe=probe, eval=EvalSpec()))
    error: DisaggError | None = None
    with reserved(prepared.ports()):
        await check_machine(prepared)
        directory = rundir.create(f"drill-{fault.name if fault else HEALTHY}")
        launch = Launch(prepared, Options(warm=True, exit_after_eval=True), record(prepared, directory), _Silent())
        try:
            await launch.run()
        except Interrupted:
            raise
        except DisaggError as caught:
            error = caught
    return _result(directory, fault, error)


def _result(directory: RunDir, fault: Fault | None, error: DisaggError | None) -> Drill:
    """A fault must be found by the proof, and nothing else; its absence must not be."""
    found = error.what.splitlines()[0] if error else "every pair proven"
    return Drill(
        fault=fault.name if fault else HEALTHY,
        what=fault.what if fault else "a healthy deployment",
        expected=fault.shows if fault else "proven",
        found=found,
        cause="; ".join(one["cause"] for one in directory.read("probe.json").get("causes", [])),
        shown=_shown(directory),
        pairs=_failed_pairs(directory),
        seconds=_proof_seconds(directory),
        ok=isinstance(error, ProbeFailed) and _shown(directory) in SEEN_AS[fault.shows] if fault else error is None,
        run=directory.path.name,
    )


SEEN_AS = {"hang": ("hang",), "wrong": ("wrong",), "late": ("late", "hang")}
"""How a fault may show itself. What comes late may come later than the proof waits."""


def _shown(directory: RunDir) -> str:
    """How the pairs of a run failed, from its probe.json. No fault makes a server refuse."""
    proof = directory.read("probe.json")
    silent = [one for one in [*proof.get("pairs", []), *proof.get("parity", [])] if one["error"]]
    if silent:
        return "hang" if any(one["timed_out"] for one in silent) else "refused"
    failed = [one for one in proof.get("parity", []) if not one["ok"]]
    if any(one["first_wrong"] is not None for one in failed):
        return "wrong"
    return "late" if failed else "proven"


def _failed_pairs(directory: RunDir) -> tuple[str, ...]:
    proof = directory.read("probe.json")
    failed = (one for one in [*proof.get("pairs", []), *proof.get("parity", [])] if not one["ok"])
    return tuple(dict.fromkeys(f"{one['prefill']} -> {one['decode']}" for one in failed))


def _proof_seconds(directory: RunDir) -> float:
    """From the first request of the proof to its end."""
    events = [json.loads(line) for line in (directory.path / "events.jsonl").read_text().splitlines()]
    phases = [(event["phase"], event["t"]) for event in events if event["kind"] == "run"]
    begun = next((at for phase, at in phases if phase == "probing"), 0.0)
    ended = next((at for phase, at in phases if phase == "stopping"), begun)
    return round(max(0.0, ended - begun), 1)


@asynccontextmanager
async def _shared_parent() -> AsyncIterator[None]:
    """One warm parent for all drills, unless there is one already."""
    if SHARED_PARENT in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="disagg-") as folder:
        parent = WarmExecutor(Path(folder) / "parent.log", home=rundir.home())
        try:
            await parent.open()
            os.environ[SHARED_PARENT] = str(parent.socket)
            yield
        finally:
            os.environ.pop(SHARED_PARENT, None)
            await parent.close()
