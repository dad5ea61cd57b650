"""From a YAML file to a TopologySpec, or to every complaint at once.

Each complaint has file:line:column, and the nearest right name where a key is unknown. `load_topology` raises them;
`read_topologies` hands them over beside what could be made of the rest, for `disagg check`.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from disagg_cli.errors import UsageError
from disagg_cli.topology.mending import readings
from disagg_cli.topology.merging import Document, change, choose, read_document, variants
from disagg_cli.topology.places import Problem
from disagg_cli.topology.reading import MAX_BYTES, parse, read
from disagg_cli.topology.spec import TopologySpec

__all__ = ["MAX_BYTES", "Loaded", "load_topology", "parse", "read", "read_topologies"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """One topology of a file, or what could be made of it: see mending.py.

    specs: one where all is right, or it is plain what is meant; two where values stand in for wrong ones, others in
    each; none where too little is right.
    """

    file: Path
    variant: str | None
    specs: tuple[TopologySpec, ...]
    problems: tuple[Problem, ...]

    @property
    def spec(self) -> TopologySpec | None:
        """The one topology that is meant; None where values had to be made up."""
        return self.specs[0] if len(self.specs) == 1 else None


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
    document = _read(file, variant, sets, unsets, environment)
    specs, found = readings(document)
    if found or not specs:
        raise _wrong(str(file), found)
    return specs[0]


def _read(
    file: Path,
    variant: str | None,
    sets: Sequence[str],
    unsets: Sequence[str],
    environment: Mapping[str, str] | None = None,
) -> Document:
    document = read_document(file, os.environ if environment is None else environment)
    return choose(change(document, sets, unsets), variant)


def with_executor(
    executor: str | None, file: Path, *, variant: str | None, sets: Sequence[str], unsets: Sequence[str]
) -> list[str]:
    """The `--set`s that make a topology run there, keeping what it says of that executor if it names it already."""
    if executor is None:
        return [*sets]
    said = _read(file, variant, sets, unsets).data.get("executor")
    kept = said.get(executor) if isinstance(said, dict) else None
    return [*sets, f"executor={json.dumps({executor: kept or {}})}"]


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


def _load(document: Document) -> Loaded:
    specs, found = readings(document)
    return Loaded(file=Path(document.file), variant=document.variant, specs=specs, problems=found)


def _wrong(name: str, found: Sequence[Problem]) -> UsageError:
    lines = [problem.sentence for problem in found]
    if len(lines) == 1:
        return UsageError(lines[0])
    return UsageError(f"{name} has {len(lines)} problems:\n" + "\n".join(f"  {line}" for line in lines))
