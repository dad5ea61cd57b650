"""What `disagg check` says about a file: everything found in each of its topologies, with the places in the file."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from disagg_cli.connector.releases import Choice, choose_release, known_releases
from disagg_cli.errors import DisaggError, UsageError
from disagg_cli.findings.finding import Finding, Severity, finding
from disagg_cli.findings.report import Overlay, report_plan
from disagg_cli.findings.topology_rules import judge_topology, kept, needless_ignores
from disagg_cli.kv.layout import KVLayout
from disagg_cli.kv.models import cached_config, layout_for, layout_from_config, local_path, packaged_models
from disagg_cli.kv.parallelism import Parallelism
from disagg_cli.topology.complaints import nearest
from disagg_cli.topology.deployment import Deployment, Worker
from disagg_cli.topology.loading import Loaded, read_topologies
from disagg_cli.topology.machine import Facts
from disagg_cli.topology.places import Place, Problem, dotted
from disagg_cli.topology.reading import Misread
from disagg_cli.topology.resolve import draft
from disagg_cli.topology.spec import TopologySpec

SCHEMA = "disagg.check/1"
HERE = ("/", "./", "../", "~")
"""How the name of a folder begins, and no hub id."""
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
    except Misread as error:
        return [_unread(file, variant, error.said, error.place, error.fix)]
    except UsageError as error:
        return [_unread(file, variant, error.what, Place(file=str(file), line=1, column=1), error.fix)]
    return [_check(one, facts, sglang) for one in loaded]


def with_findings(checked: Checked, deployment: Deployment, more: Sequence[Finding]) -> Checked:
    """The same judgement with more findings, such as those about its hosts."""
    located = (*checked.findings, *(_located(deployment, one) for one in more))
    return replace(checked, findings=tuple(sorted(located, key=_weight)))


def _unread(file: Path, variant: str | None, said: str, place: Place, fix: str | None) -> Checked:
    found = finding("DSG203", said, where="file", fix=fix)
    return Checked(file=file, variant=variant, name=None, findings=(Located(finding=found, place=place),))


def _check(loaded: Loaded, facts: Facts, sglang: str | None) -> Checked:
    """What is wrong with the words, and what all readings of them have in common."""
    first, *others = [_judged(spec, facts, sglang) for spec in loaded.specs] or [Judgement()]
    located = [_problem(problem) for problem in loaded.problems]
    located += [one for one in first.counted if all(one in other.counted for other in others)]
    ignored = [one for one in first.ignored if all(one in other.ignored for other in others)]
    return Checked(
        file=loaded.file,
        variant=loaded.variant,
        name=loaded.specs[0].name if len(loaded.specs) == 1 else None,
        findings=tuple(sorted(dict.fromkeys(located), key=_weight)),
        ignored=tuple(ignored),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """The findings of one reading: those that count, and those that are ignored, with the reasons."""

    counted: tuple[Located, ...] = ()
    ignored: tuple[tuple[Located, str], ...] = ()


def _judged(spec: TopologySpec, facts: Facts, sglang: str | None) -> Judgement:
    deployment = draft(spec)
    if sglang:
        deployment = replace(deployment, sglang=sglang)
    every = judge_everything(deployment, facts)
    counted, ignored = kept(deployment, every)
    needless = needless_ignores(deployment, every)
    return Judgement(
        counted=_for_all_pools([_located(deployment, one) for one in (*counted, *needless)]),
        ignored=tuple((_located(deployment, one), deployment.ignore[one.code]) for one in ignored),
    )


POOL = re.compile(r"(?:(?<=\bon )|(?<=\bfor )|(?<=\()|^)(?:prefill|decode)\b(?:\[\d+\])?(?!-)")
"""How messages name a pool: on prefill, for decode[1], (prefill), decode: ..."""


def _for_all_pools(located: Sequence[Located]) -> tuple[Located, ...]:
    """One finding for what is said of several pools because of one place, such as a flag under `engine`."""
    alike: dict[tuple[Any, ...], list[Located]] = {}
    for one in located:
        found, pools = one.finding, POOL.findall(one.finding.message)
        said = POOL.sub("\0", found.message) if len(pools) == 1 else found.message
        alike.setdefault((found.code, found.severity, one.place, found.fix, said), []).append(one)
    return tuple(_together(group) for group in alike.values())


def _together(group: Sequence[Located]) -> Located:
    first = group[0]
    pools = list(dict.fromkeys(pool for one in group for pool in POOL.findall(one.finding.message)))
    if len(group) == 1 or len(pools) < 2:
        return first
    message = POOL.sub(f"{', '.join(pools[:-1])} and {pools[-1]}", first.finding.message)
    return replace(first, finding=replace(first.finding, message=message))


def _weight(located: Located) -> tuple[int, Place, str]:
    order = (Severity.ERROR, Severity.WARNING, Severity.NOTE)
    return order.index(located.finding.severity), located.place, located.finding.code


def _problem(problem: Problem) -> Located:
    code = "DSG201" if problem.kind == "unknown" else "DSG202"
    said = f"{problem.field}: {problem.what}" if problem.field else problem.what
    found = finding(code, said, where=dotted(problem.path))
    return Located(finding=found, place=problem.place)


def _located(deployment: Deployment, found: Finding) -> Located:
    return Located(finding=found, place=deployment.places.at(found.where))


def judge_everything(deployment: Deployment, facts: Facts) -> tuple[Finding, ...]:
    """The findings of the plan and those of the topology, nothing left out."""
    layout, unknown = _layout(deployment)
    plan: list[Finding] = [unknown] if unknown else []
    try:
        choice = choose_release(deployment.sglang, installed=facts.installed)
    except UsageError as error:  # older than all that are known
        plan.append(finding("DSG207", error.what, where="engine.sglang", fix=error.fix))
        deployment = replace(deployment, sglang=known_releases()[0].name)
        choice = choose_release(deployment.sglang)
        layout = None
    if layout:
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
    """The model's KV layout, or the finding that it is not known, or is not there. Nothing is fetched."""
    model = deployment.model
    if model.synthetic:
        return layout_from_config(model.synthetic.config(), name="synthetic"), None
    path = model.path or ""
    try:
        return _known_layout(path), None
    except DisaggError as error:
        by_name = {known.rpartition("/")[2]: known for known in packaged_models()}
        near = by_name.get(nearest(path.rpartition("/")[2], by_name, cutoff=0.85) or "")
        if nearest(path, ["synthetic"], cutoff=0.88):
            return None, finding("DSG206", f"{path}: no such model", where="model", fix="did you mean `synthetic`?")
        if deployment.executor == "local" and path.startswith(HERE) and local_path(path) is None:
            return None, finding("DSG206", f"{path}: no such folder", where="model")
        fix = f"did you mean {near}? If not: {error.fix}" if near else error.fix
        return None, finding("DSG205", f"{path[:80]}: {error.what}", where="model", fix=fix)


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
    """The model's config.json in the Hugging Face cache, where `disagg plan` or a server has put it."""
    if cached := cached_config(model):
        return cached
    raise UsageError(
        f"no KV layout of {model} is packaged, and `disagg check` fetches nothing",
        fix="`disagg plan --model` fetches the config.json once; or name a folder that has it",
    )
