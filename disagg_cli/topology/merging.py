"""What stands between the file and the topology that is meant: `extends`, `--set`, `--unset`, variants and matrices."""

import difflib
import itertools
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from disagg_cli.errors import UsageError
from disagg_cli.secrets import is_secret, is_secret_flag
from disagg_cli.topology import places
from disagg_cli.topology.places import Place, Problem, parse_path
from disagg_cli.topology.reading import Known, Misread, parse, read

MAX_BASES = 8
MAX_READS = 64
MAX_VARIANTS = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """A topology as plain values, and where each was written.

    variant: which of the file's it is, if any. problems: single values that could not be read.
    """

    file: str
    data: dict[str, Any]
    known: Known
    variant: str | None = None
    problems: tuple[Problem, ...] = ()

    def over(self, base: "Document") -> "Document":
        """This document on top of another: mappings merge, everything else replaces."""
        data, known = _merge(base.data, self.data, dict(base.known), self.known, ())
        return Document(file=self.file, data=data, known=known, problems=(*base.problems, *self.problems))


def read_document(file: Path, environment: Mapping[str, str]) -> Document:
    """Read a file and what it extends. Misread for what is no YAML, and for files that extend each other."""
    return _read_document(file, environment, (), itertools.count())


def _read_document(
    file: Path, environment: Mapping[str, str], chain: tuple[Path, ...], reads: "itertools.count[int]"
) -> Document:
    """chain: the files that extend this one; reads: counts all that are read for one topology."""
    if next(reads) > MAX_READS:
        raise UsageError(f"{file}: extends: more than {MAX_READS} files")
    problems: list[Problem] = []
    data, known = parse(read(file), str(file), environment, problems)
    document = Document(file=str(file), data=data, known=known, problems=tuple(problems))
    if "extends" not in data:
        return document
    extends, place = data.pop("extends"), known[("extends",)]
    names = extends if isinstance(extends, list) else [extends]
    if not names or not all(isinstance(name, str) for name in names):
        raise Misread(place, "extends: expected a file name, or a list of them")
    here = (*chain, Path(os.path.realpath(file)))
    base = Document(file=str(file), data={}, known={})
    for name in names:
        base = _base(file.parent / name, environment, here, place, reads).over(base)
    return document.over(base)


def _base(
    file: Path, environment: Mapping[str, str], chain: tuple[Path, ...], place: Place, reads: "itertools.count[int]"
) -> Document:
    if Path(os.path.realpath(file)) in chain or len(chain) > MAX_BASES:
        raise Misread(place, f"extends: {file} extends itself, or more than {MAX_BASES} files deep")
    try:
        return _read_document(file, environment, chain, reads)
    except Misread:
        raise
    except UsageError as error:
        fix = _other_file(file) if error.what.startswith("no such file") else error.fix
        raise Misread(place, f"extends: {error.what}", fix=fix) from None


def _other_file(file: Path) -> str | None:
    """A file beside the one that is not there, with a name like it."""
    beside = [path.name for path in itertools.islice(file.parent.glob("*.y*ml"), 1000)] if file.parent.is_dir() else []
    near = difflib.get_close_matches(file.name, [name for name in beside if name != file.name], n=1)
    return f"did you mean `{near[0]}`?" if near else None


def _merge(base: Any, over: Any, known: Known, new: Known, path: places.Path) -> tuple[Any, Known]:
    """Lay one value over another, and its places with it."""
    if not (isinstance(base, dict) and isinstance(over, dict)):
        kept = {at: place for at, place in known.items() if at[: len(path)] != path}
        return over, kept | _below(new, path)
    result = dict(base)
    for key, value in over.items():
        inner = (*path, key)
        if value is None and (isinstance(base.get(key), dict) or path[-1:] in (("args",), ("env",))):
            result.pop(key, None)  # as `--unset` does: what a base has is taken away
            known = {at: place for at, place in known.items() if at[: len(inner)] != inner}
            continue
        result[key], known = _merge(base[key], value, known, new, inner) if key in base else (value, known)
        known |= _below(new, inner)
    return result, known | ({path: new[path]} if path in new else {})


def _below(known: Known, path: places.Path) -> Known:
    return {at: place for at, place in known.items() if at[: len(path)] == path}


def change(document: Document, sets: Sequence[str] = (), unsets: Sequence[str] = ()) -> Document:
    """Apply `--set path=value` and `--unset path`, in this order. Values may be secret: no message repeats one."""
    for text in sets:
        path, equals, value = text.partition("=")
        if not (parse_path(path) and equals):
            raise UsageError(f"--set {path}: expected path=value, such as prefill.tp=8")
        read = _value(value, parse_path(path), f"--set {path}")
        _refuse_secrets(parse_path(path), read, f"--set {path}")
        document = assign(document, path, read, Place(file=f"--set {path}"))
    for path in unsets:
        document = _remove(document, path)
    return document


def _refuse_secrets(path: places.Path, value: Any, name: str) -> None:
    """UsageError where a value, or what it holds, is a secret."""
    kind, last = path[-2:-1], str(path[-1])
    if (kind == ("env",) and is_secret(last, value)) or (kind == ("args",) and is_secret_flag(last, value)):
        raise UsageError(
            f"{name}: a secret does not belong on a command line, where everybody on the machine can read it",
            fix=f"write `{last}: ${{VARIABLE}}` in the topology, and export the variable",
        )
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, held in inner:
        _refuse_secrets((*path, key), held, name)


def _value(text: str, path: places.Path, name: str) -> Any:
    """What is set, read as YAML in a mapping of the kind that it goes to."""
    kind = str(path[-2]) if path[-2:-1] in (("args",), ("env",)) else "set"
    try:
        return parse(f"{kind}:\n  value: {text if text.strip() else repr('')}\n", name)[0][kind]["value"]
    except Misread as error:
        raise UsageError(f"{name}: the value is no YAML: {error.said}") from None


def assign(document: Document, text: str, value: Any, place: Place) -> Document:
    """Set one value. In a list of pools, `prefill.tp` means that of every pool."""
    path = parse_path(text)
    if not path:
        raise UsageError(f"{text!r} names no field", fix="such as prefill.tp, or engine.args.page-size")
    data = _spelt_out(document.data, path)
    above = {path[:length]: place for length in range(1, len(path))}
    return replace(document, data=_assigned(data, path, value, text), known=above | document.known | {path: place})


def _spelt_out(data: dict[str, Any], path: places.Path) -> dict[str, Any]:
    """`model: NAME` as a mapping, where something beside the name is set."""
    model = data.get("model")
    if path[0] == "model" and len(path) > 1 and isinstance(model, str):
        spelt: dict[str, Any] = {"synthetic": {}} if model == "synthetic" else {"path": model}
        return data | {"model": spelt}
    return data


def _assigned(node: Any, path: places.Path, value: Any, text: str) -> Any:
    if not path:
        return value
    key, rest = path[0], path[1:]
    if isinstance(key, str) and isinstance(node, list):
        return [_assigned(item, path, value, text) for item in node]
    if isinstance(key, int):
        items = [node] if isinstance(node, dict) else node
        if not isinstance(items, list) or key >= len(items):
            raise UsageError(f"{text}: there is no item {key} here")
        return [_assigned(item, rest, value, text) if i == key else item for i, item in enumerate(items)]
    if node is not None and not isinstance(node, dict):
        raise UsageError(f"{text}: `{key}` cannot be set inside {node!r}")
    return (node or {}) | {key: _assigned((node or {}).get(key), rest, value, text)}


def _remove(document: Document, text: str) -> Document:
    path = parse_path(text)
    data, found = _removed(document.data, path) if path else (document.data, False)
    if not found:
        raise UsageError(f"--unset {text}: nothing is set there")
    return replace(document, data=data, known={at: p for at, p in document.known.items() if at[: len(path)] != path})


def _removed(node: Any, path: places.Path) -> tuple[Any, bool]:
    key, rest = path[0], path[1:]
    if isinstance(node, list) and isinstance(key, str):
        pairs = [_removed(item, path) for item in node]
        return [item for item, _ in pairs], any(found for _, found in pairs)
    if isinstance(node, list) and isinstance(key, int) and key < len(node) and rest:
        inner, found = _removed(node[key], rest)
        return [*node[:key], inner, *node[key + 1 :]], found
    if not isinstance(node, dict) or key not in node:
        return node, False
    if not rest:
        return {k: v for k, v in node.items() if k != key}, True
    inner, found = _removed(node[key], rest)
    return node | {key: inner}, found


def variants(document: Document) -> Iterator[Document]:
    """Every topology in the document: itself, or each point of its matrix; and each of its named variants."""
    named, matrix = document.data.get("variants"), document.data.get("matrix")
    said = {"matrix": _wrong_matrix(matrix), "variants": _wrong_variants(named)}
    base = _stripped(document)
    for key, what in said.items():
        problem = Problem(
            place=document.known.get((key,), Place(file=document.file)), path=(key,), field=key, what=what
        )
        base = replace(base, problems=(*base.problems, *([problem] if what else [])))
    axes = [] if said["matrix"] else _axes(matrix or {}, document)
    if not axes:
        yield base
    for point in itertools.product(*axes) if axes else ():
        yield _at(base, point, document.problems)
    for name in [] if said["variants"] else named or ():
        yield _variant(document, base, name)


def _stripped(document: Document) -> Document:
    data = {key: value for key, value in document.data.items() if key not in ("variants", "matrix")}
    own = tuple(problem for problem in document.problems if problem.path[:1] not in (("variants",), ("matrix",)))
    return replace(document, data=data, problems=own)


Axis = list[tuple[places.Path, Any, Place]]
"""Each value of one field of a matrix: where it stands in the document, the value, its place in the file."""


def _wrong_matrix(matrix: Any) -> str:
    """What is wrong with a matrix; nothing for one that can be multiplied out."""
    if matrix is None:
        return ""
    if not isinstance(matrix, dict) or not all(isinstance(v, list) and v for v in matrix.values()):
        return "expected fields with a list of values each, such as `prefill.tp: [2, 4]`"
    if odd := [path for path in matrix if not parse_path(path)]:
        return f"{odd[0]!r} names no field"
    size = math.prod(len(values) for values in matrix.values())
    return f"{size:,} combinations, more than {MAX_VARIANTS}" if size > MAX_VARIANTS else ""


def _axes(matrix: Mapping[str, list[Any]], document: Document) -> list[Axis]:
    """Each field of a matrix with its values."""
    place = document.known.get(("matrix",), Place(file=document.file))
    return [
        [(("matrix", path, i), value, document.known.get(("matrix", path, i), place)) for i, value in enumerate(values)]
        for path, values in matrix.items()
    ]


def _at(base: Document, point: tuple[tuple[places.Path, Any, Place], ...], problems: Sequence[Problem]) -> Document:
    moved: list[Problem] = []
    for (_, path, i), value, place in point:
        base = assign(base, str(path), value, place)
        prefix = ("matrix", path, i)
        moved += [
            replace(one, path=(*parse_path(str(path)), *one.path[3:])) for one in problems if one.path[:3] == prefix
        ]
    name = ",".join(f"{path}={value}" for (_, path, _), value, _ in point)
    return replace(base, variant=name, problems=(*base.problems, *moved))


def _wrong_variants(named: Any) -> str:
    """What is wrong with named variants; nothing for such as can be laid over the rest."""
    if named is None:
        return ""
    if not isinstance(named, dict) or not all(isinstance(value, dict | None) for value in named.values()):
        return "expected a mapping of names to changes"
    return f"{len(named):,}, more than {MAX_VARIANTS}" if len(named) > MAX_VARIANTS else ""


def _variant(document: Document, base: Document, name: str) -> Document:
    prefix = ("variants", name)
    known = {at[2:]: place for at, place in document.known.items() if at[:2] == prefix and len(at) > 2}
    own = tuple(replace(one, path=one.path[2:]) for one in document.problems if one.path[:2] == prefix)
    changes = document.data["variants"][name] or {}
    over = Document(file=document.file, data=changes, known=known, problems=own)
    return replace(over.over(base), variant=name)


def choose(document: Document, name: str | None) -> Document:
    """The variant of this name; the topology itself without one. UsageError lists the names there are."""
    every = list(variants(document))
    found = next((one for one in every if one.variant == name), None)
    if found:
        return found
    names = ", ".join(one.variant or "(none)" for one in every[:20])
    if name is None:
        return _stripped(document)
    raise UsageError(f"{document.file} has no variant {name!r}", fix=f"one of: {names}")
