"""What a document says but for what is wrong in it, so that one mistake does not hide the next.

A misspelt key, or a value whose right spelling is plain, is taken for the one that is meant. For anything else two
values stand in, each in a reading of its own: what both readings say does not depend on the value.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from disagg_cli.topology.complaints import OUTER, problems
from disagg_cli.topology.merging import Document
from disagg_cli.topology.places import Path, Places, Problem
from disagg_cli.topology.spec import TopologySpec

ROUNDS = 8
"""A value that is mended can show another problem that it hid."""

HOSTS = ([f"host-{n}" for n in range(64)], [f"node-{n}" for n in range(128)])

STAND_INS: Mapping[str, tuple[Any, Any]] = {
    "name": ("unnamed", "without-name"),
    "platform": ("h100", "gb200-nvl72"),
    "model": ("an/unknown-model", "another/unknown-model"),
    "path": ("an/unknown-model", "another/unknown-model"),
    "prefill": ({"tp": 1}, {"tp": 2}),
    "decode": ({"tp": 1}, {"tp": 2}),
    "executor": ("local", {"ssh": {"hosts": HOSTS[0]}}),
    "ssh": ({"hosts": HOSTS[0]}, {"hosts": HOSTS[1]}),
    "hosts": HOSTS,
    "tp": (1, 2),
    "pp": (1, 2),
    "workers": (1, 2),
    "dp": (1, None),
    "layers": (2, 1024),
}
"""For fields that have to be there, and for sizes. None: what `tp` beside it says, which every dp divides."""

Edit = Callable[[dict[str, Any], str], dict[str, Any]]


def readings(document: Document) -> tuple[tuple[TopologySpec, ...], tuple[Problem, ...]]:
    """What can be made of a document, and every problem with it.

    One topology where nothing is wrong, or where it is plain what is meant; two where values stand in for wrong ones;
    none where too little is right.
    """
    (spec, found), (other, others) = _reading(document, 0), _reading(document, 1)
    both = tuple(problem for problem in found if problem in others)
    if spec is None or other is None:
        return (), both
    return ((spec,) if spec == other else (spec, other)), both


def _reading(document: Document, number: int) -> tuple[TopologySpec | None, list[Problem]]:
    """Validate, mend what is wrong, and validate again, until nothing is or nothing more can be mended."""
    found = list(document.problems)
    for problem in found:
        document = _mended(document, problem, number)
    for _ in range(ROUNDS):
        try:
            spec = TopologySpec.model_validate(document.data)
            places = Places(file=document.file, known=document.known)
            return spec.placed(places, document.data), _in_order(found)
        except ValidationError as error:
            new = problems(error, document.known, document.file)
        new = [one for one in new if one.kind == "unknown"] or new  # a misspelt key may be the one that is missing
        known = {problem.path for problem in found}
        found += [one for one in new if not any(one.path[:length] in known for length in range(1, len(one.path) + 1))]
        before = document.data
        for problem in sorted(new, key=lambda problem: len(problem.path), reverse=True):
            document = _mended(document, problem, number)
        if document.data == before:
            break
    return None, _in_order(found)


def _in_order(found: Sequence[Problem]) -> list[Problem]:
    return sorted(dict.fromkeys(found), key=lambda problem: (problem.place, problem.field, problem.what))


def _mended(document: Document, problem: Problem, number: int) -> Document:
    """The document with something in place of what is wrong."""
    path, meant = problem.path, problem.meant
    while path and isinstance(path[-1], int) and len(path) > 1:  # an item: its list as a whole
        path, meant = path[:-1], None
    if not path:
        return document
    if path == ("topology",):  # which stands for the workers of roles that need not be there themselves
        roles = {role: STAND_INS[role][number] for role in ("prefill", "decode")}
        document = replace(document, data=roles | document.data)
    if problem.kind == "unknown":
        return _renamed(document, path, None if meant in OUTER and meant != "topology" else meant)
    if meant is not None:
        return _with(document, path, list(meant) if isinstance(meant, tuple) else meant)
    if str(path[-1]) in STAND_INS:
        other = _with(document, path, STAND_INS[str(path[-1])][number])
        return other if other.data != document.data else _renamed(document, path, None)
    return _renamed(document, path, None)


def _renamed(document: Document, path: Path, meant: str | None) -> Document:
    """The document with another name for a key, unless it has one of that name; without the key where none is meant."""

    def rename(node: dict[str, Any], key: str) -> dict[str, Any]:
        kept = {name: value for name, value in node.items() if name != key}
        return {meant: node[key]} | kept if meant and meant not in node and key in node else kept

    known, length = dict(document.known), len(path)
    for at, place in document.known.items():
        if meant and at[:length] == path:
            known.setdefault((*path[:-1], meant, *at[length:]), place)
    return replace(document, data=_edited(document.data, path, rename), known=known)


def _with(document: Document, path: Path, value: Any) -> Document:
    def put(node: dict[str, Any], key: str) -> dict[str, Any]:
        return node | {key: node.get("tp", 1) if value is None else value}

    return replace(document, data=_edited(document.data, path, put))


def _edited(node: Any, path: Path, edit: Edit) -> Any:
    """The value with the mapping edited that holds the last part of `path`."""
    key, rest = path[0], path[1:]
    if isinstance(node, dict) and isinstance(key, int):  # a lone pool, named with its index
        return _edited(node, rest, edit) if rest else node
    if isinstance(node, list) and isinstance(key, int) and key < len(node):
        return [*node[:key], _edited(node[key], rest, edit) if rest else node[key], *node[key + 1 :]]
    if not isinstance(node, dict):
        return node
    if not rest:
        return edit(node, str(key))
    return node | {key: _edited(node[key], rest, edit)} if key in node else node
