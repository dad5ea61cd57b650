"""What pydantic says about a document, as people can use it: place, field, what was expected, the nearest name."""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from disagg_cli.topology.flags import every_flag
from disagg_cli.topology.managed_flags import ENGINE
from disagg_cli.topology.places import Path, Place, Problem, dotted
from disagg_cli.topology.spec import TopologySpec

OUTER = ("extends", "topology", "variants", "matrix")
"""Keys of a file that are gone once it is a TopologySpec."""

SYNONYMS = {
    "replicas": "workers",
    "instances": "workers",
    "num-workers": "workers",
    "environment": "env",
    "flags": "args",
    "extra-args": "args",
}
"""What others call what is called something else here."""


def problems(error: ValidationError, known: Mapping[Path, Place], name: str) -> list[Problem]:
    """Every problem, in the order of the file."""
    found = [_problem(detail, known, name) for detail in error.errors()]
    return sorted(dict.fromkeys(found), key=lambda problem: (problem.place, problem.field, problem.what))


def _problem(detail: ErrorDetails, known: Mapping[Path, Place], name: str) -> Problem:
    loc: Path = detail["loc"]
    if detail["type"] == "placed_error":
        at = detail["ctx"]["at"]
        loc = loc if loc[-1:] == (at,) else (*loc, at)
    kind = {"extra_forbidden": "unknown", "missing": "missing"}.get(detail["type"], "value")
    path = _written_path(loc, known)
    meant = _meant_key(loc) if kind == "unknown" else _meant_value(detail)
    field = (*path, loc[-1]) if kind == "missing" else path
    return Problem(
        place=known.get(path, Place(file=name, line=1, column=1)),
        path=field,
        field=dotted(field),
        what=_complaint(detail, loc, meant),
        kind=kind,
        meant=tuple(meant) if isinstance(meant, list) else meant,
    )


# What pydantic calls by the names of Python's types, and of our classes.
EXPECTED = {
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "float_type": "a number",
    "int_type": "a whole number",
    "list_type": "a list",
    "model_type": "a mapping",
    "string_too_short": "text that is not empty",
    "string_type": "text",
    "too_short": "at least one item",
}
PATTERNS = {
    "name": "letters, digits, `.`, `_` and `-`, at most 63, with a letter or digit in front (it names a folder)",
    "hosts": "a host name or address, without brackets, port or option",
    "env": "the name of a variable: letters, digits and `_`",
    "ignore": "the code of a finding, such as DSG502",
}
SHAPES = {
    "prefill": "a mapping for one pool of workers, such as {tp: 4}, or a list of them",
    "decode": "a mapping for one pool of workers, such as {tp: 4}, or a list of them",
    "model": "a hub id, a folder, or {synthetic: {}}",
    "connector": "a mapping, such as {backend: nixl}",
    "engine": "a mapping, such as {args: {page-size: 64}}",
    "args": "a mapping of flags, such as {page-size: 64}",
    "env": "a mapping of variables, such as {UCX_NET_DEVICES: mlx5_0:1}",
    "executor": "`local`, `slurm`, or {ssh: {hosts: [a, b]}}",
    "ssh": "a mapping, such as {hosts: [a, b]}",
    "eval": "a mapping, such as {gsm8k: {questions: 200}}",
    "ignore": 'a mapping of codes to reasons, such as {DSG601: "one NIC is cabled"}',
    "place": "a list of one mapping for each worker, such as [{node-1: [0, 1]}, {node-1: [2, 3]}]",
}


def _complaint(detail: ErrorDetails, loc: Path, meant: Any) -> str:
    if detail["type"] == "extra_forbidden":
        return _unknown(loc, meant)
    if detail["type"] == "missing":
        return "this key is missing"
    if detail["type"] in ("value_error", "placed_error"):
        return detail["msg"].removeprefix("Value error, ")
    hint = f"; did you mean {_shown(meant)}?" if meant is not None and detail["type"] != "string_type" else ""
    return f"expected {_expected(detail, loc)}{_given(detail, hint=hint)}{hint}"


def _unknown(loc: Path, meant: str | None) -> str:
    key, known = str(loc[-1]), sorted(_fields_at(loc[:-1]))
    if key in OUTER:
        return f"`{key}` stands at the top of a file only, beside `name`"
    if meant:
        return f"unknown key; did you mean `{meant}`?"
    if "args" in known and _flag(key) in every_flag():
        return f"unknown key; flags of SGLang go under `args`: {{args: {{{_flag(key)}: ...}}}}"
    return f"unknown key; known: {', '.join(known) or 'none'}"


def _flag(key: str) -> str:
    return key.lstrip("-").replace("_", "-")


def _meant_key(loc: Path) -> str | None:
    """The key that an unknown one stands for: a spelling of SGLang's, another case, or one much like it."""
    known, key = sorted(_fields_at(loc[:-1])), str(loc[-1])
    if key in OUTER:
        return None
    spelt = _flag(key).lower()
    for same in (spelt.replace("-", "_"), ENGINE.get(spelt), SYNONYMS.get(spelt)):
        if same in known:
            return same
    return nearest(spelt.replace("-", "_"), known)


def nearest(word: str, words: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The word most like this one, in whatever case; None for words of no likeness, and for very long ones."""
    by_lower = {known.lower(): known for known in words}
    near = difflib.get_close_matches(word[:64].lower(), by_lower, n=1, cutoff=cutoff)
    return by_lower[near[0]] if near else None


def _meant_value(detail: ErrorDetails) -> Any:
    """What a wrong value most likely is meant to be: None where nothing is likely."""
    value, kind = detail["input"], detail["type"]
    if kind in ("int_type", "float_type") and isinstance(value, str):
        return _number(value, whole=kind == "int_type")
    if kind == "int_type" and isinstance(value, float) and value.is_integer():
        return int(value)
    if kind == "list_type" and isinstance(value, str) and detail["loc"][-1:] == ("hosts",):
        return value.replace(",", " ").split()
    if kind == "string_type" and isinstance(value, int | float):
        return str(value).lower() if isinstance(value, bool) else str(value)
    if kind == "literal_error" and isinstance(value, str):
        return nearest(value.replace("-", "_"), [str(word) for word in _literals(detail)])
    if kind == "placed_error":
        return detail["ctx"]["near"]
    return None


def _number(text: str, *, whole: bool) -> int | float | None:
    try:
        return int(text) if whole else float(text)
    except ValueError:
        return None


def _literals(detail: ErrorDetails) -> list[str]:
    return [word.strip(" '") for word in str(detail["ctx"]["expected"]).replace(" or ", ", ").split(",")]


def _shown(value: Any) -> str:
    return f"`{value}`" if isinstance(value, str) else f"{value}" if isinstance(value, int | float) else f"{value!r}"


def _expected(detail: ErrorDetails, loc: Path) -> str:
    if detail["type"] == "string_pattern_mismatch":
        named = [PATTERNS[part] for part in loc if part in PATTERNS]
        return named[-1] if named else f"text that matches {detail['ctx']['pattern']}"
    if detail["type"] in ("list_type", "dict_type", "model_type") and loc[-1] in SHAPES:
        return SHAPES[str(loc[-1])]
    if detail["type"] == "too_long":
        return f"at most {detail['ctx']['max_length']} items, got {len(detail['input']):,}"
    return EXPECTED.get(detail["type"]) or detail["msg"].removeprefix("Input should be ")


def _given(detail: ErrorDetails, *, hint: str) -> str:
    value = detail["input"]
    if isinstance(value, dict | list):
        return ""
    if value is None:
        return ", got nothing"
    given = str(value).lower() if isinstance(value, bool) else repr(value)
    quote = "; quote it to make it text" if detail["type"] == "string_type" and not hint else ""
    return f", got {given[:200]}" + quote


def _written_path(loc: Path, known: Mapping[Path, Place]) -> Path:
    """Map pydantic's location to what stands in the file, where one pool may be written without its list."""
    path: Path = ()
    for part in loc:
        if (*path, part) in known:
            path = (*path, part)
    return path


def _fields_at(loc: Path) -> Iterator[str]:
    """Names of the keys that are known at a location."""
    model: type[BaseModel] | None = TopologySpec
    for part in loc:
        if model is None or isinstance(part, int):
            continue
        field = model.model_fields.get(part)
        model = _model_in(field.annotation) if field else None
    yield from model.model_fields if model else ()
    if model is TopologySpec:
        yield from OUTER


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The pydantic model inside `X`, `X | None`, `list[X]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for arg in get_args(annotation) if (found := _model_in(arg))), None)
