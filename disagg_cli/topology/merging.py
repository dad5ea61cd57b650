"""What stands between the file and the topology that is meant: `extends`, `--set`, `--unset`, variants and matrices."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from disagg_cli.errors import UsageError
from disagg_cli.topology import places
from disagg_cli.topology.places import Place, parse_path
from disagg_cli.topology.reading import Known, parse, read

MAX_BASES = 8
MAX_READS = 64
MAX_VARIANTS = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """A topology as plain values, and where each was written. variant: which of the file's it is, if any."""

    file: str
    data: dict[str, Any]
    known: Known
    variant: str | None = None

    def over(self, base: "Document") -> "Document":
        """This document on top of another: mappings merge, everything else replaces."""
        data, known = _merge(base.data, self.data, dict(base.known), self.known, ())
        return Document(file=self.file, data=data, known=known)


def read_document(file: Path, environment: Mapping[str, str]) -> Document:
    """Read a file and what it extends. UsageError for what is no YAML, and for files that extend each other."""
    return _read_document(file, environment, (), itertools.count())


def _read_document(
    file: Path, environment: Mapping[str, str], chain: tuple[Path, ...], reads: "itertools.count[int]"
) -> Document:
    """chain: the files that extend this one; reads: counts all that are read for one topology."""
    if next(reads) > MAX_READS:
        raise UsageError(f"{file}: extends: more than {MAX_READS} files")
    data, known = parse(read(file), str(file), environment)
    extends = data.pop("extends", None)
    document = Document(file=str(file), data=data, known=known)
    if extends is None:
        return document
    place = known[("extends",)]
    names = extends if isinstance(extends, list) else [extends]
    if not all(isinstance(name, str) for name in names):
        raise UsageError(f"{place}: extends: expected a file name, or a list of them")
    here = (*chain, file.resolve())
    base = Document(file=str(file), data={}, known={})
    for name in names:
        base = _base(file.parent / name, environment, here, place, reads).over(base)
    return document.over(base)


def _base(
    file: Path, environment: Mapping[str, str], chain: tuple[Path, ...], place: Place, reads: "itertools.count[int]"
) -> Document:
    if file.resolve() in chain or len(chain) > MAX_BASES:
        raise UsageError(f"{place}: extends: {file} extends itself, or more than {MAX_BASES} files deep")
    try:
        return _read_document(file, environment, chain, reads)
    except UsageError as error:
        raise UsageError(error.what, where=error.where or f"{place} (extends)", fix=error.fix) from None


def _merge(base: Any, over: Any, known: Known, new: Known, path: places.Path) -> tuple[Any, Known]:
    """Lay one value over another, and its places with it."""
    if not (isinstance(base, dict) and isinstance(over, dict)):
        kept = {at: place for at, place in known.items() if at[: len(path)] != path}
        return over, kept | _below(new, path)
    result = dict(base)
    for key, value in over.items():
        inner = (*path, key)
        result[key], known = _merge(base[key], value, known, new, inner) if key in base else (value, known)
        known |= _below(new, inner)
    return result, known | ({path: new[path]} if path in new else {})


def _below(known: Known, path: places.Path) -> Known:
    return {at: place for at, place in known.items() if at[: len(path)] == path}


def change(document: Document, sets: Sequence[str] = (), unsets: Sequence[str] = ()) -> Document:
    """Apply `--set path=value` and `--unset path`, in this order. Values may be secret: no message repeats one."""
    for text in sets:
        path, equals, value = text.partition("=")
        if not (path and equals):
            raise UsageError(f"--set {path}: expected path=value, such as prefill.tp=8")
        name = f"--set {path}"
        parsed = parse(f"value: {value}" if value.strip() else "value: ''", name)[0]["value"]
        document = assign(document, path, parsed, Place(file=name))
    for path in unsets:
        document = _remove(document, path)
    return document


def assign(document: Document, text: str, value: Any, place: Place) -> Document:
    """Set one value. In a list of pools, `prefill.tp` means that of every pool."""
    path = parse_path(text)
    data = _spelt_out(document.data, path)
    return replace(document, data=_assigned(data, path, value, text), known=document.known | {path: place})


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
    data, found = _removed(document.data, path)
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
    base = _stripped(document)
    axes = _axes(matrix, document) if matrix is not None else []
    if not axes:
        yield base
    for point in itertools.islice(itertools.product(*axes), MAX_VARIANTS if axes else 0):
        yield _at(base, point)
    for name in _named(named, document):
        yield _variant(document, base, name)


def _stripped(document: Document) -> Document:
    data = {key: value for key, value in document.data.items() if key not in ("variants", "matrix")}
    return replace(document, data=data)


Axis = list[tuple[str, Any, Place]]


def _axes(matrix: Any, document: Document) -> list[Axis]:
    """Each field of a matrix with its values and their places."""
    place = document.known[("matrix",)]
    if not isinstance(matrix, dict) or not all(isinstance(v, list) and v for v in matrix.values()):
        raise UsageError(f"{place}: matrix: expected fields with a list of values each, such as `prefill.tp: [2, 4]`")
    size = 1
    for values in matrix.values():
        size *= len(values)
    if size > MAX_VARIANTS:
        raise UsageError(f"{place}: matrix: {size:,} combinations, more than {MAX_VARIANTS}")
    return [
        [(path, value, document.known.get(("matrix", path, i), place)) for i, value in enumerate(values)]
        for path, values in matrix.items()
    ]


def _at(base: Document, point: tuple[tuple[str, Any, Place], ...]) -> Document:
    for path, value, place in point:
        base = assign(base, path, value, place)
    return replace(base, variant=",".join(f"{path}={value}" for path, value, _ in point))


def _named(named: Any, document: Document) -> list[str]:
    if named is None:
        return []
    if not isinstance(named, dict) or not all(isinstance(value, dict) for value in named.values()):
        raise UsageError(f"{document.known[('variants',)]}: variants: expected a mapping of names to changes")
    return list(named)


def _variant(document: Document, base: Document, name: str) -> Document:
    prefix = ("variants", name)
    known = {at[2:]: place for at, place in document.known.items() if at[:2] == prefix and len(at) > 2}
    over = Document(file=document.file, data=document.data["variants"][name], known=known)
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
