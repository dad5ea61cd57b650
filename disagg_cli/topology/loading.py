"""From a YAML file to a TopologySpec, or to every complaint at once.

Each complaint has file:line:column, and the nearest right name where a key is unknown.
"""

import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from disagg_cli.errors import UsageError
from disagg_cli.topology.spec import TopologySpec

MAX_BYTES = 1 << 20
MAX_NODES = 50_000
"""Aliases that multiply are cut off here: a topology has hundreds of nodes."""
MAX_DEPTH = 32

MERGE = "tag:yaml.org,2002:merge"
NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")

Path_ = tuple[str | int, ...]
Position = tuple[int, int]

_Loader = cast(type[yaml.SafeLoader], getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def load_topology(file: Path) -> TopologySpec:
    """Read and validate a topology. UsageError names every problem with its place."""
    data, positions = parse(read(file), str(file))
    try:
        return TopologySpec.model_validate(data)
    except ValidationError as error:
        problems = [_sentence(detail, positions, str(file)) for detail in error.errors()]
        raise _wrong(str(file), sorted(problems)) from None


def read(file: Path) -> str:
    """Return the file's text. UsageError for what is no readable, reasonably small text file."""
    try:
        if not file.is_file():
            raise UsageError(f"no such file: {file}" if not file.exists() else f"not a file: {file}")
        if (size := file.stat().st_size) > MAX_BYTES:
            raise UsageError(f"{file} is {size:,} bytes; a topology has at most {MAX_BYTES:,}")
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} is not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from None


def parse(text: str, name: str) -> tuple[dict[str, Any], dict[Path_, Position]]:
    """Return the document and where each of its values stands: path -> (line, column), from 1."""
    try:
        loader = _Loader(text)
        reader = _Reader(loader, name)
        root = loader.get_single_node()
        if not isinstance(root, yaml.MappingNode):
            raise UsageError(f"{name}: expected a mapping with keys such as `name` and `prefill`")
        return cast(dict[str, Any], reader.value(root, ())), reader.positions
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        at = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise UsageError(f"{name}{at}: {error.problem or 'not YAML'}") from None
    except yaml.reader.ReaderError as error:
        line = text.encode()[: error.position].count(b"\n") + 1
        raise UsageError(f"{name}:{line}: {error.reason} (#x{error.character:04x})") from None
    except RecursionError:  # only where PyYAML was built without libyaml, which has a limit of its own
        raise UsageError(f"{name}: nested too deep") from None


class _Reader:
    """Builds plain values from YAML nodes and remembers where they stood."""

    def __init__(self, loader: yaml.SafeLoader, name: str) -> None:
        self.loader = loader
        self.name = name
        self.positions: dict[Path_, Position] = {}
        self.seen = 0
        self.depth = 0

    def value(self, node: yaml.Node, path: Path_) -> Any:
        """Return the plain value of a node that stands at `path`."""
        self.seen += 1
        self.depth += 1
        here = _position(node)
        if self.seen > MAX_NODES or self.depth > MAX_DEPTH:
            raise self._error(node, "too many or too deep values (aliases that multiply, or that hold themselves?)")
        self.positions.setdefault(path, here)
        result: Any
        if isinstance(node, yaml.MappingNode):
            result = self._mapping(node, path)
        elif isinstance(node, yaml.SequenceNode):
            result = [self.value(item, (*path, i)) for i, item in enumerate(node.value)]
        else:
            result = self._scalar(node, path)
        self.depth -= 1
        return result

    def _scalar(self, node: yaml.Node, path: Path_) -> Any:
        if path[-2:-1] == ("env",) and node.tag in NUMBERS:
            return node.value  # verbatim: 010 and 1.10 would come out as 8 and 1.1
        try:
            return self.loader.construct_object(node)
        except ValueError as error:  # 2020-99-01, a number of 5000 digits
            raise self._error(node, str(error)) from None

    def _mapping(self, node: yaml.MappingNode, path: Path_) -> dict[str, Any]:
        self._refuse_twins(node)
        result: dict[str, Any] = {}
        for source in self._merged(node):
            result = self.value(source, path) | result  # the first of several merged mappings wins
        for key_node, value_node in node.value:
            if key_node.tag == MERGE:
                continue
            if not isinstance(key_node, yaml.ScalarNode):
                raise self._error(key_node, "a key must be plain text")
            key = key_node.value
            self.positions[(*path, key)] = _position(key_node)
            result[key] = self.value(value_node, (*path, key))
        return result

    def _merged(self, node: yaml.MappingNode) -> Iterator[yaml.MappingNode]:
        """The mappings whose keys `<<` takes in."""
        for key_node, value_node in node.value:
            if key_node.tag != MERGE:
                continue
            for source in value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]:
                if not isinstance(source, yaml.MappingNode):
                    raise self._error(source, "expected a mapping, or a list of mappings, after `<<`")
                yield source

    def _refuse_twins(self, node: yaml.MappingNode) -> None:
        """Refuse a key that stands twice: YAML would silently take the last one."""
        seen: set[str] = set()
        for key_node, _ in node.value:
            if isinstance(key_node, yaml.ScalarNode) and key_node.tag != MERGE:
                if key_node.value in seen:
                    raise self._error(key_node, f"`{key_node.value}` stands twice in the same mapping")
                seen.add(key_node.value)

    def _error(self, node: yaml.Node, what: str) -> UsageError:
        line, column = _position(node)
        return UsageError(f"{self.name}:{line}:{column}: {what}")


def _position(node: yaml.Node) -> Position:
    return node.start_mark.line + 1, node.start_mark.column + 1


def _sentence(detail: ErrorDetails, positions: dict[Path_, Position], name: str) -> tuple[Position, str]:
    path = _written_path(detail["loc"], positions)
    line, column = positions.get(path, (1, 1))
    field = _dotted(path if detail["type"] != "missing" else (*path, detail["loc"][-1]))
    return (line, column), f"{name}:{line}:{column}: {field}: {_complaint(detail)}"


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
        known = list(_fields_at(detail["loc"][:-1]))
        near = difflib.get_close_matches(str(detail["loc"][-1]), known, n=1)
        return f"unknown key; did you mean `{near[0]}`?" if near else f"unknown key; known: {', '.join(sorted(known)) or 'none'}"
    if detail["type"] == "missing":
        return "this key is missing"
    if detail["type"] == "value_error":
        return detail["msg"].removeprefix("Value error, ")
    return f"expected {_expected(detail)}{_given(detail)}"


def _expected(detail: ErrorDetails) -> str:
    if detail["type"] == "string_pattern_mismatch":
        return f"text that matches {detail['ctx']['pattern']}"
    return EXPECTED.get(detail["type"]) or detail["msg"].removeprefix("Input should be ")


def _given(detail: ErrorDetails) -> str:
    value = detail["input"]
    if isinstance(value, dict | list):
        return ""
    given = {None: "nothing", True: "true", False: "false"}.get(value, repr(value)) if _is_word(value) else repr(value)
    return f", got {given}" + ("; quote it to make it text" if detail["type"] == "string_type" and value else "")


def _written_path(loc: tuple[str | int, ...], positions: dict[Path_, Position]) -> Path_:
    """Map pydantic's location to what stands in the file, where one pool may be written without its list."""
    path: Path_ = ()
    for part in loc:
        if (*path, part) in positions:
            path = (*path, part)
    return path


def _dotted(path: Path_) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.lstrip(".") or "topology"


def _fields_at(loc: tuple[str | int, ...]) -> Iterator[str]:
    """Names of the keys that are known at a location."""
    model: type[BaseModel] | None = TopologySpec
    for part in loc:
        if model is None or isinstance(part, int):
            continue
        field = model.model_fields.get(part)
        model = _model_in(field.annotation) if field else None
    yield from model.model_fields if model else ()


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The pydantic model inside `X`, `X | None`, `list[X]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for arg in get_args(annotation) if (found := _model_in(arg))), None)


def _wrong(name: str, problems: list[tuple[Position, str]]) -> UsageError:
    lines = [text for _, text in problems]
    if len(lines) == 1:
        return UsageError(lines[0])
    return UsageError(f"{name} has {len(lines)} problems:\n" + "\n".join(f"  {line}" for line in lines))
