"""The variants and sweeps of an srtctl recipe, each as a recipe of its own; and a file of ours made of them."""

import copy
import itertools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from disagg_cli.errors import UsageError
from disagg_cli.topology.reading import parse, read
from disagg_cli.topology.srtctl import Notes, convert

MOST = 512
PLACEHOLDER = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Imported:
    """A topology as plain values, and what of the recipe it does not say."""

    recipe: str
    topology: dict[str, Any]
    left: tuple[str, ...]

    def text(self) -> str:
        """The topology as a YAML file, with what is missing as a comment at its head."""
        head = [f"# From the srtctl recipe {self.recipe}, by `disagg import srtctl`."]
        if self.left:
            head += ["# Not carried over:", *(f"#   {' '.join(line.split())}" for line in self.left)]
        return "\n".join(head) + "\n" + yaml.safe_dump(self.topology, sort_keys=False, width=100, allow_unicode=True)


def import_recipe(file: Path, variant: str | None = None, platform: str | None = None) -> Imported:
    """Read a recipe. Several variants become `variants` on top of the first; `variant` takes one of them alone.

    platform: what the recipe runs on, where it leaves that to the cluster. UsageError for what is no recipe for SGLang.
    """
    document, _ = parse(read(file), str(file))
    notes = Notes()
    try:
        recipes = dict(itertools.islice(_recipes(document), MOST))
    except UsageError as error:
        raise UsageError(error.what, where=str(file), fix=error.fix) from None
    if variant is not None:
        if variant not in recipes:
            names = ", ".join(recipes) or "none"
            raise UsageError(f"{file} has no variant {variant!r}", fix=f"its variants: {names}")
        recipes = {variant: recipes[variant]}
    if not recipes:
        raise UsageError(f"{file}: the sweep has no points")
    topologies = _converted(recipes, notes, file, platform)
    (_, first), *rest = topologies.items()
    changes = {name: _difference(first, other) for name, other in rest}
    topology = first | ({"variants": changes} if changes else {})
    return Imported(recipe=file.name, topology=topology, left=tuple(notes.lines))


def _converted(
    recipes: Mapping[str, Mapping[str, Any]], notes: Notes, file: Path, platform: str | None
) -> dict[str, dict[str, Any]]:
    """Each recipe as a topology. A base that is no deployment by itself is left out: srtctl does not run it either."""
    topologies = {}
    for name, recipe in recipes.items():
        try:
            topologies[name] = convert(recipe, notes, platform)
        except UsageError as error:
            if name != "base" or len(recipes) == 1:
                said = f"{name}: {error.what}" if len(recipes) > 1 else error.what
                raise UsageError(said, where=str(file), fix=error.fix) from None
            notes.add(f"base: {error.what}")
    return topologies


def _recipes(document: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each recipe that the file stands for, by its name."""
    if "base" not in document:
        yield from _swept("base", dict(document))
        return
    base = document["base"]
    if not isinstance(base, dict):
        raise UsageError("base: expected a mapping")
    variants = [key for key in document if key.startswith(("override_", "zip_override_"))]
    yield from _swept("base", base)
    for key in variants:
        change = document[key] or {}
        if not isinstance(change, dict):
            raise UsageError(f"{key}: expected a mapping")
        if key.startswith("override_"):
            yield from _swept(key.removeprefix("override_"), _merged(base, change))
        else:
            name = key.removeprefix("zip_override_")
            for index in range(_length(change, key)):
                yield from _swept(f"{name}_{index}", _merged(base, _slice(change, index)))


def _merged(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Mappings merge, everything else replaces; a null takes the key away."""
    result = copy.deepcopy(dict(base))
    for key, value in change.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict) and isinstance(result.get(key), dict):
            result[key] = _merged(result[key], value)
        else:
            result[key] = value
    return result


def _length(change: Any, key: str) -> int:
    """How many variants a zip has: the length of its lists, but for those of one element, which serve them all."""
    lengths = {len(leaf) for leaf in _lists(change)} - {1}
    if len(lengths) > 1:
        raise UsageError(f"{key}: lists of different lengths ({', '.join(map(str, sorted(lengths)))})")
    return lengths.pop() if lengths else 1


def _lists(node: Any) -> Iterator[list[Any]]:
    if isinstance(node, list):
        yield node
    elif isinstance(node, dict):
        for value in node.values():
            yield from _lists(value)


def _slice(node: Any, index: int) -> Any:
    if isinstance(node, list):
        return node[0 if len(node) == 1 else index]
    return {key: _slice(value, index) for key, value in node.items()} if isinstance(node, dict) else node


def _swept(name: str, recipe: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The recipe once for each point of its sweep, with {placeholders} filled in."""
    sweep = recipe.get("sweep")
    recipe = {key: value for key, value in recipe.items() if key != "sweep"}
    if sweep is None:
        yield name, recipe
        return
    for number, point in enumerate(_points(sweep)):
        said = ",".join(f"{key}={value}" for key, value in point.items())
        said = said or f"{name}_{number}"
        yield said if name == "base" else f"{name},{said}", _filled(recipe, point)


def _points(sweep: Any) -> list[dict[str, Any]]:
    """A list of points, or lists to be multiplied (grid) or taken together (zip)."""
    if isinstance(sweep, list) and all(isinstance(point, dict) for point in sweep):
        return sweep
    if not isinstance(sweep, dict):
        raise UsageError("sweep: expected a list of points, or a mapping with lists")
    values = sweep.get("parameters") or {key: value for key, value in sweep.items() if key != "mode"}
    if not isinstance(values, dict) or not all(isinstance(value, list) for value in values.values()):
        raise UsageError("sweep: expected a list for each parameter")
    if sweep.get("mode") == "zip" and len({len(value) for value in values.values()}) > 1:
        raise UsageError(f"sweep: lists of different lengths ({', '.join(f'{k} {len(v)}' for k, v in values.items())})")
    together = zip(*values.values(), strict=True) if sweep.get("mode") == "zip" else itertools.product(*values.values())
    return [dict(zip(values, point, strict=True)) for point in itertools.islice(together, MOST)]


def _filled(node: Any, point: Mapping[str, Any]) -> Any:
    if isinstance(node, dict):
        if len(node) == 1 and next(iter(node.values())) is None and next(iter(node)) in point:
            return point[next(iter(node))]  # {name} without quotes, which YAML takes for a mapping
        return {key: _filled(value, point) for key, value in node.items()}
    if isinstance(node, list):
        return [_filled(item, point) for item in node]
    if not isinstance(node, str):
        return node
    alone = PLACEHOLDER.fullmatch(node)
    if alone and alone[1] in point:
        return point[alone[1]]
    return PLACEHOLDER.sub(lambda match: str(point.get(match[1], match[0])), node)


USUAL = {"dp": 1, "pp": 1, "dp_attention": False, "workers": 1, "policy": "round_robin"}
"""What fields that are left out mean: a variant has to say it where its base says something else."""


def _difference(base: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """What has to be laid over `base` to say what `other` says. A null takes away what the base has."""
    changes: dict[str, Any] = {}
    for key, value in other.items():
        if key not in base:
            changes[key] = value
        elif isinstance(value, dict) and isinstance(base[key], dict):
            if inner := _difference(base[key], value):
                changes[key] = inner
        elif json.dumps(value) != json.dumps(base[key]):
            changes[key] = value
    return changes | {key: USUAL.get(key) for key in base if key not in other}
