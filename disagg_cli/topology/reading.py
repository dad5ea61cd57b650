"""From a YAML file to plain values, each with its place. Bounded in size, depth and time, whatever the file holds."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import yaml

from disagg_cli.errors import UsageError
from disagg_cli.topology import places
from disagg_cli.topology.places import Place

MAX_BYTES = 1 << 20
MAX_NODES = 20_000
"""Aliases that multiply are cut off here: a topology has hundreds of nodes."""
MAX_DEPTH = 32

MERGE = "tag:yaml.org,2002:merge"
NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
VARIABLE = re.compile(r"(?P<kept>\$\$\{)|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}|(?P<odd>\$\{)")

_Loader = cast(type[yaml.SafeLoader], getattr(yaml, "CSafeLoader", yaml.SafeLoader))

Known = dict[places.Path, Place]


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


def parse(text: str, name: str, environment: Mapping[str, str] | None = None) -> tuple[dict[str, Any], Known]:
    """Return the document and where each of its values stands.

    `environment` gives the values of `${VAR}`; without it they stay as they are.
    """
    try:
        loader = _Loader(text)
        reader = _Reader(loader, name, environment)
        root = loader.get_single_node()
        if not isinstance(root, yaml.MappingNode):
            raise UsageError(f"{name}: expected a mapping with keys such as `name` and `prefill`")
        return cast(dict[str, Any], reader.value(root, ())), reader.places
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

    def __init__(self, loader: yaml.SafeLoader, name: str, environment: Mapping[str, str] | None) -> None:
        self.loader = loader
        self.name = name
        self.environment = environment
        self.places: Known = {}
        self.seen = 0
        self.depth = 0

    def value(self, node: yaml.Node, path: places.Path) -> Any:
        """Return the plain value of a node that stands at `path`."""
        self.seen += 1
        self.depth += 1
        if self.seen > MAX_NODES or self.depth > MAX_DEPTH:
            raise self._error(node, "too many or too deep values (aliases that multiply, or that hold themselves?)")
        self.places.setdefault(path, self._place(node))
        result: Any
        if isinstance(node, yaml.MappingNode):
            result = self._mapping(node, path)
        elif isinstance(node, yaml.SequenceNode):
            result = [self.value(item, (*path, i)) for i, item in enumerate(node.value)]
        else:
            result = self._scalar(node, path)
        self.depth -= 1
        return result

    def _scalar(self, node: yaml.Node, path: places.Path) -> Any:
        node = self._substituted(node)
        if path[-2:-1] == ("env",) and node.tag in NUMBERS:
            return node.value  # verbatim: 010 and 1.10 would come out as 8 and 1.1
        try:
            return self.loader.construct_object(node)
        except ValueError as error:  # 2020-99-01, a number of 5000 digits
            raise self._error(node, str(error)) from None
        except (KeyError, AttributeError, IndexError):  # `!!bool abc`, `!!timestamp abc`, `!!int ""`
            raise self._error(node, f"{node.value!r} is no {node.tag.rpartition(':')[2]}") from None

    def _substituted(self, node: yaml.Node) -> yaml.Node:
        """Put the environment's values in place of ${VAR}; a value that is nothing else takes the type it reads as."""
        if self.environment is None or "${" not in node.value:
            return node
        text = VARIABLE.sub(lambda match: self._variable(match, node), node.value)
        alone = VARIABLE.fullmatch(node.value)
        tag = str(self.loader.resolve(yaml.ScalarNode, text, (True, False))) if alone else node.tag  # type: ignore[no-untyped-call]
        return yaml.ScalarNode(tag, text, node.start_mark, node.end_mark)

    def _variable(self, match: re.Match[str], node: yaml.Node) -> str:
        assert self.environment is not None
        name = match["name"]
        if match["kept"]:
            return "${"
        if name is None:
            raise self._error(node, "expected ${NAME} or ${NAME:-default}; $${ stands for ${ itself")
        value = self.environment.get(name, match["default"])
        if value is None:
            what = f"${{{name}}} is not set in the environment; export it, or write ${{{name}:-default}}"
            raise self._error(node, what)
        return str(value)

    def _mapping(self, node: yaml.MappingNode, path: places.Path) -> dict[str, Any]:
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
            self.places[(*path, key)] = self._place(key_node)
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

    def _place(self, node: yaml.Node) -> Place:
        return Place(file=self.name, line=node.start_mark.line + 1, column=node.start_mark.column + 1)

    def _error(self, node: yaml.Node, what: str) -> UsageError:
        return UsageError(f"{self._place(node)}: {what}")
