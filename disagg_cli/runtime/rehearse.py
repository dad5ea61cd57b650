"""A rehearsal: a GPU topology's CPU twin launched, proven, held against an aggregated server, stopped, and reported."""

import asyncio
import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import psutil
import yaml

from disagg_cli.connector.faults.catalogue import ENABLE, named
from disagg_cli.engine.installed import version_of
from disagg_cli.errors import DisaggError, EvalFailed, Interrupted, ProbeFailed, UsageError
from disagg_cli.evals.compare import Comparison
from disagg_cli.evals.report import EvalReport
from disagg_cli.executors.kept_parent import Place, look
from disagg_cli.findings.finding import Severity
from disagg_cli.findings.topology_case import Case
from disagg_cli.findings.topology_effective import page_size
from disagg_cli.findings.topology_report import judge_everything
from disagg_cli.findings.topology_rules import kept
from disagg_cli.kv.layout import KVLayout
from disagg_cli.rehearsal.derive import QUESTIONS, Derived, derive
from disagg_cli.rehearsal.fingerprint import fingerprint
from disagg_cli.rehearsal.notes import Note, grouped
from disagg_cli.rehearsal.scaling import Needs, Room, fit
from disagg_cli.runtime import rundir
from disagg_cli.runtime.drill import idle_everywhere
from disagg_cli.runtime.interruption import until_interrupted
from disagg_cli.runtime.launch import Launch, Options, View, check_machine, record
from disagg_cli.runtime.prepare import Prepared, layout_of, prepare_deployment, with_aggregated, with_env
from disagg_cli.runtime.reservation import reserved
from disagg_cli.runtime.state import Recorder
from disagg_cli.topology.deployment import Deployment, Role
from disagg_cli.topology.loading import load_topology
from disagg_cli.topology.machine import gather
from disagg_cli.topology.resolve import draft, resolve

REPORT = "rehearsal.json"
TOPOLOGY = "topology.yaml"
PREFIX = "rehearse-"
GIB = 1 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Rehearsal:
    """A rehearsal that is ready to start. fingerprint: of the topology that it stands for."""

    config: Path
    name: str
    fingerprint: str
    derived: Derived
    needs: Needs
    room: Room
    prepared: Prepared
    fault: str | None = None

    @property
    def notes(self) -> list[Note]:
        """What it has of the topology, by kind."""
        return grouped(self.derived.notes)

    def document(self) -> dict[str, Any]:
        """The rehearsal before it has run."""
        return {
            "schema": "disagg.rehearsal/1",
            "config": str(self.config),
            "name": self.name,
            "fingerprint": self.fingerprint,
            "fault": self.fault,
            "notes": [note.document() for note in self.notes],
            "needs": self.needs.document(),
            "room": {"cores": self.room.cores, "memory_gib": self.room.memory_gib},
            "topology": dict(self.derived.document),
            "sglang": version_of("sglang"),
        }


class Shown(View, Protocol):
    """Who shows a rehearsal while it goes on."""

    def live(self) -> AbstractContextManager[None]:
        """Keep showing while the body runs."""


def prepare_rehearsal(
    config: Path,
    *,
    variant: str | None = None,
    sets: Sequence[str] = (),
    unsets: Sequence[str] = (),
    cold: bool = False,
    fault: str | None = None,
) -> Rehearsal:
    """Derive, scale, plan and judge. Starts nothing.

    UsageError or PlanRefused say what is wrong; a plan that says no is in `prepared.errors`.
    """
    spec = load_topology(config, variant=variant, sets=sets, unsets=unsets)
    room, original = room_here(), draft(spec)
    layout = layout_of(original.model)
    derived = derive(spec, installed=version_of("sglang"), pages=_pages(original, layout))
    derived, needs = fit(derived, room, warm=not cold)
    deployment = resolve(derived.spec)
    if fault:
        deployment = with_env(deployment, "prefill", {ENABLE: fault})
    prepared = with_aggregated(_judged(prepare_deployment(config, deployment), original), tp=1)
    for planted in named([fault] if fault else []):
        if why := idle_everywhere(planted, prepared.plans):
            raise UsageError(f"{fault} would show nothing: {why}", where=str(config))
    return Rehearsal(
        config=config,
        name=spec.name,
        fingerprint=fingerprint(original, layout),
        derived=derived,
        needs=needs,
        room=room,
        prepared=prepared,
        fault=fault,
    )


def _pages(original: Deployment, layout: KVLayout) -> dict[tuple[Role, int], int]:
    """Page sizes that pools of the topology have by their attention backends."""
    case = Case(deployment=original, facts=gather(), layout=layout)
    sizes = {(pool.role, pool.index): page_size(case, pool) for pool in original.pools}
    return {pool: int(size.value) for pool, size in sizes.items() if size.value and size.flag == "attention-backend"}


KV_PATH = ("DSG1", "DSG50")
"""Codes of what is wrong with the plan, or between prefill and decode."""


def _judged(prepared: Prepared, original: Deployment) -> Prepared:
    """The same with the errors that the topology itself has in its KV path: its twin need not have them."""
    known = {found.code for found in prepared.findings if found.severity is Severity.ERROR}
    findings, _ = kept(original, judge_everything(original, gather()))
    own = [
        found
        for found in findings
        if found.severity is Severity.ERROR and found.code.startswith(KV_PATH) and found.code not in known
    ]
    return replace(prepared, findings=(*own, *prepared.findings))


def room_here() -> Room:
    """What this process may use: cores, and memory that is free now, of the machine and of its control group."""
    group = Path("/sys/fs/cgroup")
    cores = int(min(len(os.sched_getaffinity(0)), cores_of_group(group)))
    free = min(psutil.virtual_memory().available, memory_of_group(group))
    with contextlib.suppress(DisaggError):  # one that hangs is not used
        kept = look(Place.of(rundir.home())) is not None
        return Room(cores=cores, memory_gib=round(free / GIB, 1), has_parent=kept)
    return Room(cores=cores, memory_gib=round(free / GIB, 1))


def cores_of_group(group: Path) -> float:
    """Whole cores in a control group's quota, at least one; infinity where it has none (cgroup-v2, cpu.max)."""
    try:
        quota, period = (group / "cpu.max").read_text().split()
        return math.inf if quota == "max" else max(1, int(quota) // int(period))
    except (OSError, ValueError):
        return math.inf


def memory_of_group(group: Path) -> float:
    """Bytes that a control group may still take; infinity where nothing limits it (cgroup-v2, memory.max)."""
    try:
        limit, used = ((group / name).read_text().strip() for name in ("memory.max", "memory.current"))
        return math.inf if limit == "max" else max(0, int(limit) - int(used))
    except (OSError, ValueError):
        return math.inf


def run_rehearsal(rehearsal: Rehearsal, show: Callable[[Recorder], Shown]) -> tuple[dict[str, Any], DisaggError | None]:
    """Do all of it, leave no process behind, and return the report, which is kept, with what ended it."""
    with reserved(rehearsal.prepared.ports()):
        until_interrupted(check_machine(rehearsal.prepared))
        directory = rundir.create(f"{PREFIX}{rehearsal.name}")
        directory.write_text(TOPOLOGY, yaml.safe_dump(dict(rehearsal.derived.document), sort_keys=False))
        recorder = record(replace(rehearsal.prepared, config=directory.path / TOPOLOGY), directory)
        view = _Noting(show(recorder))
        options = Options(warm=rehearsal.needs.warm, exit_after_eval=True)
        begun, error = time.time(), None

        async def run() -> None:
            await Launch(rehearsal.prepared, options, recorder, view).run()

        try:
            with view.shown.live():
                asyncio.run(run())
            _require_agreement(view.seen)
            _require_no_fault(rehearsal.fault)
        except Interrupted:
            raise  # it says nothing of the topology
        except DisaggError as caught:
            error = caught
    report = rehearsal.document() | {
        "run": directory.path.name,
        "at": round(begun, 3),
        "seconds": round(time.time() - begun, 1),
        "ok": error is None,
        "exit_code": error.exit_code if error else 0,
        "reason": error.what.splitlines()[0] if error else "every pair proven, and every answer the same",
        "probe": directory.read("probe.json"),
        "agreement": view.agreement,
    }
    directory.write(REPORT, report)
    return report, error


class _Noting:
    """Shows a launch as another view does, and keeps the comparison of the answers."""

    def __init__(self, shown: Shown) -> None:
        self.shown = shown
        self.seen: Comparison | None = None

    def report(self, report: EvalReport) -> None:
        self.shown.report(report)

    def comparison(self, comparison: Comparison) -> None:
        self.seen = comparison  # the report tells it

    def serving(self) -> None:
        self.shown.serving()

    @property
    def agreement(self) -> dict[str, Any] | None:
        """How many answers were the same, in figures."""
        seen = self.seen
        return {"questions": QUESTIONS, "answered": seen.pairs, "identical": seen.identical} if seen else None


def _require_agreement(seen: Comparison | None) -> None:
    """Every answer must be the same: arithmetic is exact, so that one that is not is the transfer's doing."""
    if seen is None or seen.identical < QUESTIONS:
        same = seen.identical if seen else 0
        raise EvalFailed(
            f"{same} of {QUESTIONS} answers are those of the aggregated server",
            fix="see `eval/comparison.json` in the run's folder for where they part",
        )


def _require_no_fault(fault: str | None) -> None:
    """A rehearsal with a planted fault must have failed by now."""
    if fault:
        raise ProbeFailed(f"{fault} was planted, and nothing of it was seen", fix="see what was planted in the logs")


def last_rehearsal(word: str) -> dict[str, Any] | None:
    """The report of the newest rehearsal with this fingerprint, planted faults aside; None if there is none."""
    reports = (rundir.home() / "runs").glob(f"{PREFIX}*/{REPORT}")
    for path in sorted(reports, key=lambda path: path.stat().st_mtime, reverse=True):
        with contextlib.suppress(OSError, ValueError, KeyError):
            report: dict[str, Any] = json.loads(path.read_text())
            if report["fingerprint"] == word and report["fault"] is None:
                return report
    return None
