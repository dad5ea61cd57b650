"""What `disagg check` says about a file: everything found in each of its topologies, with the places in the file."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from disagg_cli.connector.releases import Choice, choose_release
from disagg_cli.errors import DisaggError, UsageError
from disagg_cli.findings.finding import Finding, Severity, finding
from disagg_cli.findings.report import Overlay, report_plan
from disagg_cli.findings.topology_rules import judge_topology, kept, needless_ignores
from disagg_cli.kv.layout import KVLayout
from disagg_cli.kv.models import layout_for, layout_from_config
from disagg_cli.kv.parallelism import Parallelism
from disagg_cli.topology.complaints import Problem
from disagg_cli.topology.deployment import Deployment, Worker
from disagg_cli.topology.loading import Loaded, read_topologies
from disagg_cli.topology.machine import Facts
from disagg_cli.topology.places import Place
from disagg_cli.topology.resolve import draft

SCHEMA = "disagg.check/1"
QUANTIZED = re.compile(r"-(FP8|NVFP4|MXFP4|FP4|AWQ|GPTQ-Int4|INT8)$", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Located:
    """A finding and the place of what it is about."""

    finding: Finding
    place: Place

    def document(self) -> dict[str, Any]:
        """The finding as JSON shows it, with file, line and column."""
        place = self.place
        return self.finding.document() | {"file": place.file, "line": place.line, "column": place.column}


@dataclass(frozen=True, kw_only=True, slots=True)
class Checked:
    """One topology of a file, judged. findings are in the order of weight, then of the file."""

    file: Path
    variant: str | None
    name: str | None
    findings: tuple[Located, ...]
    ignored: tuple[tuple[Located, str], ...] = ()

    @property
    def title(self) -> str:
        """The file, and which of its variants."""
        return f"{self.file} [{self.variant}]" if self.variant else str(self.file)

    def count(self, severity: Severity) -> int:
        """How many findings are of this weight."""
        return sum(located.finding.severity is severity for located in self.findings)

    @property
    def ok(self) -> bool:
        """Whether nothing forbids a launch."""
        return not self.count(Severity.ERROR)

    def document(self) -> dict[str, Any]:
        """The judgement as JSON shows it."""
        return {
            "file": str(self.file),
            "variant": self.variant,
            "name": self.name,
            "ok": self.ok,
            "findings": [located.document() for located in self.findings],
            "ignored": [located.document() | {"reason": reason} for located, reason in self.ignored],
        }


def document(checked: Sequence[Checked]) -> dict[str, Any]:
    """All judgements as `disagg.check/1`."""
    return {
        "schema": SCHEMA,
        "ok": all(one.ok for one in checked),
        "errors": sum(one.count(Severity.ERROR) for one in checked),
        "warnings": sum(one.count(Severity.WARNING) for one in checked),
        "notes": sum(one.count(Severity.NOTE) for one in checked),
        "topologies": [one.document() for one in checked],
    }


def check_file(
    file: Path,
    facts: Facts,
    *,
    variant: str | None = None,
    sets: Sequence[str] = (),
    unsets: Sequence[str] = (),
    sglang: str | None = None,
) -> list[Checked]:
    """Judge every topology of a file, or one of its variants. What keeps it from being read is a finding too."""
    try:
        loaded = read_topologies(file, variant=variant, sets=sets, unsets=unsets)
    except UsageError as error:
        place = _from(error, file)
        found = finding("DSG203", error.what.removeprefix(f"{place}: "), where="file", fix=error.fix)
        return [Checked(file=file, variant=variant, name=None, findings=(Located(finding=found, place=place),))]
    return [_check(one, facts, sglang) for one in loaded]


def with_findings(checked: Checked, deployment: Deployment, more: Sequence[Finding]) -> Checked:
    """The same judgement with more findings, such as those about its hosts."""
    located = (*checked.findings, *(_located(deployment, one) for one in more))
    return replace(checked, findings=tuple(sorted(located, key=_weight)))


def _from(error: UsageError, file: Path) -> Place:
    """The place that an error's text begins with, if it has one in this file."""
    head = error.what.removeprefix(str(file)).split(": ")[0].split(":")
    numbers = [int(part) for part in head if part.isdigit()]
    line, column = ([*numbers, 1, 1][:2]) if numbers and error.what.startswith(str(file)) else (1, 1)
    return Place(file=str(file), line=line, column=column)


def _check(loaded: Loaded, facts: Facts, sglang: str | None) -> Checked:
    wrong = [_problem(problem) for problem in loaded.problems]
    if loaded.spec is None:
        return Checked(file=loaded.file, variant=loaded.variant, name=None, findings=tuple(wrong))
    deployment = draft(loaded.spec)
    if sglang:
        deployment = replace(deployment, sglang=sglang)
    every = judge_everything(deployment, facts)
    counted, ignored = kept(deployment, every)
    located = [*wrong, *(_located(deployment, one) for one in (*counted, *needless_ignores(deployment, every)))]
    return Checked(
        file=loaded.file,
        variant=loaded.variant,
        name=deployment.name,
        findings=tuple(sorted(located, key=_weight)),
        ignored=tuple((_located(deployment, one), deployment.ignore[one.code]) for one in ignored),
    )


def _weight(located: Located) -> tuple[int, Place, str]:
    order = (Severity.ERROR, Severity.WARNING, Severity.NOTE)
    return order.index(located.finding.severity), located.place, located.finding.code


def _problem(problem: Problem) -> Located:
    code = "DSG201" if problem.unknown else "DSG202"
    found = finding(code, f"{problem.field}: {problem.what}", where=problem.field)
    return Located(finding=found, place=problem.place)


def _located(deployment: Deployment, found: Finding) -> Located:
    return Located(finding=found, place=deployment.places.at(found.where))


def judge_everything(deployment: Deployment, facts: Facts) -> tuple[Finding, ...]:
    """The findings of the plan and those of the topology, nothing left out."""
    layout, unknown = _layout(deployment)
    plan: list[Finding] = [unknown] if unknown else []
    if layout:
        choice = choose_release(deployment.sglang, installed=facts.installed)
        decode = _sizes(deployment.role("decode"))
        for prefill in _sizes(deployment.role("prefill")):
            plan += _plan(layout, prefill, decode, choice, deployment.connector.overlay)
    unheeded = replace(deployment, ignore={})
    return tuple(dict.fromkeys((*plan, *judge_topology(unheeded, facts, layout=layout))))


@cache
def _plan(
    layout: KVLayout, prefill: Parallelism, decode: tuple[Parallelism, ...], choice: Choice, overlay: Overlay
) -> tuple[Finding, ...]:
    return report_plan(layout, prefill, decode, choice, overlay=overlay).findings


def _sizes(workers: Sequence[Worker]) -> tuple[Parallelism, ...]:
    """Each different way in which workers are divided, once."""
    sizes = (Parallelism(tp=w.tp, dp=w.dp, pp=w.pp, dp_attention=w.dp_attention) for w in workers)
    return tuple(dict.fromkeys(sizes))


def _layout(deployment: Deployment) -> tuple[KVLayout | None, Finding | None]:
    """The model's KV layout, or the finding that it is not known. Nothing is fetched."""
    model = deployment.model
    if model.synthetic:
        return layout_from_config(model.synthetic.config(), name="synthetic"), None
    try:
        return _known_layout(model.path or ""), None
    except DisaggError as error:
        return None, finding("DSG205", f"{model.path}: {error.what}", where="model", fix=error.fix)


@cache
def _known_layout(model: str) -> KVLayout:
    """The model's layout, or that of the model which it is a quantized copy of: the same heads and layers."""
    try:
        return layout_for(model, download=_do_not_fetch)
    except DisaggError:
        original = QUANTIZED.sub("", model)
        if original == model:
            raise
        return layout_for(original, download=_do_not_fetch)


def _do_not_fetch(model: str) -> Path:
    raise UsageError(
        f"no KV layout of {model} is packaged, and `disagg check` fetches nothing",
        fix="`disagg plan --model` fetches the config.json once; or name a folder that has it",
    )
