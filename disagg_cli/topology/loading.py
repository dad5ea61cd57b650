"""From a YAML file to a TopologySpec, or to every complaint at once.

Each complaint has file:line:column, and the nearest right name where a key is unknown. `load_topology` raises them;
`read_topologies` hands them over beside what could be made of the rest, for `disagg check`.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from disagg_cli.errors import UsageError
from disagg_cli.topology.complaints import Problem, problems
from disagg_cli.topology.merging import Document, change, choose, read_document, variants
from disagg_cli.topology.places import Path as Keys
from disagg_cli.topology.places import Places
from disagg_cli.topology.reading import MAX_BYTES, parse, read
from disagg_cli.topology.spec import TopologySpec

__all__ = ["MAX_BYTES", "Loaded", "load_topology", "parse", "read", "read_topologies"]

HARMLESS = ("probe", "eval", "router", "ignore")
"""Where a wrong value leaves the rest of a topology meaning what it says."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """One topology of a file. spec is None where too little is right for anything to be made of it."""

    file: Path
    variant: str | None
    spec: TopologySpec | None
    problems: tuple[Problem, ...]


def load_topology(
    file: Path,
    *,
    variant: str | None = None,
    sets: Sequence[str] = (),
    unsets: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> TopologySpec:
    """Read and validate a topology. UsageError names every problem with its place.

    variant: which of the file's variants; sets and unsets: as `--set` and `--unset` have them.
    """
    document = read_document(file, os.environ if environment is None else environment)
    document = choose(change(document, sets, unsets), variant)
    try:
        return _validate(document)
    except ValidationError as error:
        raise _wrong(str(file), problems(error, document.known, str(file))) from None


def read_topologies(
    file: Path,
    *,
    variant: str | None = None,
    sets: Sequence[str] = (),
    unsets: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> list[Loaded]:
    """Read every topology of a file, or the variant of this name. UsageError where the file cannot be read as YAML."""
    document = read_document(file, os.environ if environment is None else environment)
    document = change(document, sets, unsets)
    return [_load(one) for one in ([choose(document, variant)] if variant else variants(document))]


def _validate(document: Document) -> TopologySpec:
    spec = TopologySpec.model_validate(document.data)
    return spec.placed(Places(file=document.file, known=document.known))


def _load(document: Document) -> Loaded:
    """Validate; then once more without what was wrong, if the rest can be judged without it."""
    file = Path(document.file)
    try:
        return Loaded(file=file, variant=document.variant, spec=_validate(document), problems=())
    except ValidationError as error:
        found = problems(error, document.known, document.file)
    spec = _mended(document, found) if all(_mendable(problem) for problem in found) else None
    return Loaded(file=file, variant=document.variant, spec=spec, problems=tuple(found))


def _mendable(problem: Problem) -> bool:
    path = problem.path
    return bool(path) and (problem.unknown or path[0] in HARMLESS or {"args", "env"} & set(path[:-1]) != set())


def _mended(document: Document, found: Sequence[Problem]) -> TopologySpec | None:
    """What the rest says, each unknown key taken for the one that it most likely means."""
    for problem in found:
        document = _without(document, problem.path, problem.meant)
    try:
        return _validate(document)
    except ValidationError:
        return None


def _without(document: Document, path: Keys, meant: str | None) -> Document:
    data = _renamed(document.data, path, meant)
    known = dict(document.known)
    if meant and path in known:
        known.setdefault((*path[:-1], meant), known[path])
    return replace(document, data=data, known=known)


def _renamed(node: Any, path: Keys, meant: str | None) -> Any:
    """The value without the key at `path`, or with the key that was meant, if it has none of that name."""
    key, rest = path[0], path[1:]
    if isinstance(node, list):
        return [_renamed(item, rest, meant) if i == key else item for i, item in enumerate(node)] if rest else node
    if not isinstance(node, dict):
        return node
    if rest:
        return node | {key: _renamed(node.get(key), rest, meant)}
    kept = {k: v for k, v in node.items() if k != key}
    return {meant: node[key]} | kept if meant and key in node else kept


def _wrong(name: str, found: Sequence[Problem]) -> UsageError:
    lines = [problem.sentence for problem in found]
    if len(lines) == 1:
        return UsageError(lines[0])
    return UsageError(f"{name} has {len(lines)} problems:\n" + "\n".join(f"  {line}" for line in lines))
