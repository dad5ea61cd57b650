"""What pydantic says about a document, as people can use it: place, field, what was expected, the nearest name."""

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from disagg_cli.topology.places import Path, Place, dotted
from disagg_cli.topology.spec import TopologySpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """One thing that is wrong with a document. meant: the key that an unknown one most likely stands for."""

    place: Place
    path: Path
    field: str
    what: str
    unknown: bool = False
    meant: str | None = None

    @property
    def sentence(self) -> str:
        """The problem with its place."""
        return f"{self.place}: {self.field}: {self.what}"


def problems(error: ValidationError, known: Mapping[Path, Place], name: str) -> list[Problem]:
    """Every problem, in the order of the file."""
    found = [_problem(detail, known, name) for detail in error.errors()]
    return sorted(found, key=lambda problem: (problem.place, problem.field, problem.what))


def _problem(detail: ErrorDetails, known: Mapping[Path, Place], name: str) -> Problem:
    path = _written_path(detail["loc"], known)
    field = dotted(path if detail["type"] != "missing" else (*path, detail["loc"][-1]))
    unknown = detail["type"] == "extra_forbidden"
    return Problem(
        place=known.get(path, Place(file=name, line=1, column=1)),
        path=path,
        field=field,
        what=_complaint(detail),
        unknown=unknown,
        meant=_meant(detail) if unknown else None,
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


def _complaint(detail: ErrorDetails) -> str:
    if detail["type"] == "extra_forbidden":
        near = _meant(detail)
        known = sorted(_fields_at(detail["loc"][:-1]))
        return f"unknown key; did you mean `{near}`?" if near else f"unknown key; known: {', '.join(known) or 'none'}"
    if detail["type"] == "missing":
        return "this key is missing"
    if detail["type"] == "value_error":
        return detail["msg"].removeprefix("Value error, ")
    return f"expected {_expected(detail)}{_given(detail)}"


def _meant(detail: ErrorDetails) -> str | None:
    known = sorted(_fields_at(detail["loc"][:-1]))
    return next(iter(difflib.get_close_matches(str(detail["loc"][-1]), known, n=1)), None)


def _expected(detail: ErrorDetails) -> str:
    if detail["type"] == "string_pattern_mismatch":
        return f"text that matches {detail['ctx']['pattern']}"
    return EXPECTED.get(detail["type"]) or detail["msg"].removeprefix("Input should be ")


def _given(detail: ErrorDetails) -> str:
    value = detail["input"]
    if isinstance(value, dict | list):
        return ""
    if value is None:
        return ", got nothing"
    given = str(value).lower() if isinstance(value, bool) else repr(value)
    return f", got {given}" + ("; quote it to make it text" if detail["type"] == "string_type" else "")


def _written_path(loc: tuple[str | int, ...], known: Mapping[Path, Place]) -> Path:
    """Map pydantic's location to what stands in the file, where one pool may be written without its list."""
    path: Path = ()
    for part in loc:
        if (*path, part) in known:
            path = (*path, part)
    return path


def _fields_at(loc: tuple[str | int, ...]) -> Iterator[str]:
    """Names of the keys that are known at a location."""
    model: type[BaseModel] | None = TopologySpec
    for part in loc:
        if model is None or isinstance(part, int):
            continue
        field = model.model_fields.get(part)
        model = _model_in(field.annotation) if field else None
    yield from model.model_fields if model else ()
    if model is TopologySpec:
        yield from ("extends", "topology", "variants", "matrix")


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The pydantic model inside `X`, `X | None`, `list[X]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for arg in get_args(annotation) if (found := _model_in(arg))), None)
