"""From a YAML file to plain values, each with its place. Bounded in size, depth and time, whatever the file holds.

Plain numbers mean what people and editors take them for (YAML 1.2): 1:30:00 is text and not 5400, 1e-3 is a number, and
under `args` and `env` they are passed on as written.
"""

import errno
import re
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, cast

import yaml

from disagg_cli.errors import UsageError
from disagg_cli.topology import places
from disagg_cli.topology.places import Place, Problem

STDIN = Path("-")
MAX_BYTES = 1 << 20
MAX_NODES = 20_000
"""Aliases that multiply are cut off here: a topology has hundreds of nodes."""
MAX_DEPTH = 32
MAX_PROBLEMS = 200

MERGE = "tag:yaml.org,2002:merge"
INT, FLOAT, BOOL, TEXT = (f"tag:yaml.org,2002:{kind}" for kind in ("int", "float", "bool", "str"))
PLAIN = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")
VERBATIM = ("env", "args", "environment", "prefill_environment", "decode_environment", "aggregated_environment")
"""Mappings whose numbers go to other programs as they are written: 010 and 1.10 would come out as 8 and 1.1."""
EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")
BASE_60_OR_8 = re.compile(r"[-+]?(\d[\d_]*(:[\d.]+)+|0[\d_]+)")
VARIABLE = re.compile(r"(?P<kept>\$\$\{)|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}|(?P<odd>\$\{)")

_Loader = cast(type[yaml.SafeLoader], getattr(yaml, "CSafeLoader", yaml.SafeLoader))

Known = dict[places.Path, Place]


class Misread(UsageError):
    """A place in a file that cannot be read, with what is wrong there."""

    def __init__(self, place: Place, said: str, *, fix: str | None = None) -> None:
        super().__init__(f"{place}: {said}", fix=fix)
        self.place = place
        self.said = said


def refuse_stdin(file: Path, reader: str) -> None:
    """UsageError where a topology comes from stdin, and another process has to read it as well."""
    if file == STDIN:
        raise UsageError(f"{reader} cannot read a topology from stdin", fix="write it to a file, and name that")


def read(file: Path) -> str:
    """Return the file's text, or that of stdin for `-`. Misread for what is no readable, reasonably small text file."""
    place = Place(file=str(file))
    try:
        if file == STDIN:
            raw = _said_once(sys.stdin.buffer)
        elif not file.is_file():
            raise UsageError(f"no such file: {file}" if not file.exists() else f"not a file: {file}")
        elif (size := file.stat().st_size) > MAX_BYTES:
            raise UsageError(f"{file} is {size:,} bytes; a topology has at most {MAX_BYTES:,}")
        else:
            raw = file.read_bytes()
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: pathlib's for a loop of links
        loop = isinstance(error, RuntimeError) or getattr(error, "errno", None) == errno.ELOOP
        said = "a loop of symbolic links" if loop else getattr(error, "strerror", None) or str(error)
        raise UsageError(f"cannot read {file}: {said}") from None
    if len(raw) > MAX_BYTES:
        raise Misread(place, f"more than {MAX_BYTES:,} bytes")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise Misread(Place(file=str(file), line=line, column=1), f"not UTF-8 text (byte {error.start})") from None


@cache
def _said_once(stream: BinaryIO) -> bytes:
    """What comes through a pipe, also for whoever asks for it again."""
    return stream.read(MAX_BYTES + 1)


def parse(
    text: str,
    name: str,
    environment: Mapping[str, str] | None = None,
    problems: list[Problem] | None = None,
) -> tuple[dict[str, Any], Known]:
    """Return the document and where each of its values stands.

    environment gives the values of `${VAR}`; without it they stay as they are. problems takes what is wrong with single
    values, so that the rest can be read on; without it the first such thing is raised. Misread for what is no YAML.
    """
    try:
        loader = _Loader(text)
        reader = _Reader(loader, name, environment, problems)
        root = loader.get_single_node()
        if not isinstance(root, yaml.MappingNode):
            raise Misread(
                Place(file=name, line=1, column=1), "expected a mapping with keys such as `name` and `prefill`"
            )
        return cast(dict[str, Any], reader.value(root, ())), reader.places
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = Place(file=name, line=mark.line + 1, column=mark.column + 1) if mark else Place(file=name)
        raise Misread(place, _in_yaml(error, text)) from None
    except yaml.reader.ReaderError as error:
        line = text.encode()[: error.position].count(b"\n") + 1
        raise Misread(Place(file=name, line=line, column=1), f"{error.reason} (#x{error.character:04x})") from None
    except RecursionError:  # only where PyYAML was built without libyaml, which has a limit of its own
        raise Misread(Place(file=name, line=1, column=1), "nested too deep") from None


def _in_yaml(error: yaml.MarkedYAMLError, text: str) -> str:
    """What the parser says, and what it comes from where that is usual."""
    said = error.problem or "not YAML"
    lines = text.splitlines()
    line = lines[error.problem_mark.line] if error.problem_mark and error.problem_mark.line < len(lines) else ""
    if "cannot start any token" in said and line[:1].isspace() and "\t" in line[: len(line) - len(line.lstrip())]:
        return f"{said}: YAML takes no tab before a key, only spaces"
    if "another document" in said:
        return f"{said}: one topology a file (`---` begins another); `variants` keep several together"
    if "${" in line and "expected ',' or" in said:
        return f"{said}: inside {{}} and [] a ${{VAR}} has to be quoted"
    return said


class _Reader:
    """Builds plain values from YAML nodes and remembers where they stood."""

    def __init__(
        self, loader: yaml.SafeLoader, name: str, environment: Mapping[str, str] | None, problems: list[Problem] | None
    ) -> None:
        self.loader = loader
        self.name = name
        self.environment = environment
        self.problems = problems
        self.places: Known = {}
        self.seen = 0
        self.depth = 0

    def value(self, node: yaml.Node, path: places.Path) -> Any:
        """Return the plain value of a node that stands at `path`."""
        self.seen += 1
        self.depth += 1
        if self.seen > MAX_NODES or self.depth > MAX_DEPTH:
            said = "too many or too deep values (aliases that multiply, or that hold themselves?)"
            raise Misread(self._place(node), said)
        self.places.setdefault(path, self._place(node))
        result: Any
        if isinstance(node, yaml.MappingNode):
            result = self._mapping(node, path)
        elif isinstance(node, yaml.SequenceNode):
            result = [self.value(item, (*path, i)) for i, item in enumerate(node.value)]
        else:
            result = self._scalar(node, path)
        if node.tag not in PLAIN and not isinstance(node, yaml.ScalarNode):
            self._wrong(node, path, f"{node.tag} is no tag that a topology knows")
        self.depth -= 1
        return result

    def _scalar(self, node: yaml.Node, path: places.Path) -> Any:
        node = self._substituted(node, path)
        tag = node.tag
        if (tag == INT and BASE_60_OR_8.fullmatch(node.value)) or (tag == FLOAT and ":" in node.value):
            return node.value
        if tag == TEXT and getattr(node, "style", "") in (None, "") and EXPONENT.fullmatch(node.value):
            tag = FLOAT
        if tag in (INT, FLOAT) and len(node.value) > 400:
            self._wrong(node, path, f"a number of {len(node.value):,} characters")
            return node.value[:16]
        try:
            value = float(node.value) if tag != node.tag else self.loader.construct_object(node)
        except yaml.constructor.ConstructorError as error:
            self._wrong(node, path, str(error.problem))
            return None
        except ValueError as error:  # 2020-99-01
            self._wrong(node, path, str(error))
            return None
        except (KeyError, AttributeError, IndexError):  # `!!bool abc`, `!!timestamp abc`, `!!int ""`
            self._wrong(node, path, f"{node.value!r} is no {node.tag.rpartition(':')[2]}")
            return None
        if tag == BOOL and path[-2:-1] == ("env",):
            return node.value  # `yes` is what the program is to read, and not `true`
        return self._as_written(value, node.value, path) if tag in (INT, FLOAT) else value

    @staticmethod
    def _as_written(value: Any, text: str, path: places.Path) -> Any:
        if path[-2:-1] == ("env",) or (len(path) > 1 and str(path[-2]).endswith("environment")):
            return text
        return text if path[-2:-1] and path[-2] in VERBATIM and str(value) != text else value

    def _substituted(self, node: yaml.Node, path: places.Path) -> yaml.Node:
        """Put the environment's values in place of ${VAR}; a value that is nothing else takes the type it reads as."""
        if self.environment is None or "${" not in node.value:
            return node
        text = VARIABLE.sub(lambda match: self._variable(match, node, path), node.value)
        alone = VARIABLE.fullmatch(node.value)
        tag = str(self.loader.resolve(yaml.ScalarNode, text, (True, False))) if alone else node.tag  # type: ignore[no-untyped-call]
        return yaml.ScalarNode(tag, text, node.start_mark, node.end_mark)

    def _variable(self, match: re.Match[str], node: yaml.Node, path: places.Path) -> str:
        assert self.environment is not None
        name = match["name"]
        if match["kept"]:
            return "${"
        if name is None:
            self._wrong(node, path, "expected ${NAME} or ${NAME:-default}; $${ stands for ${ itself")
            return "${"
        value = self.environment.get(name, match["default"])
        if value is None:
            what = f"${{{name}}} is not set in the environment; export it, or write ${{{name}:-default}}"
            self._wrong(node, path, what)
            return match[0]
        return str(value)

    def _mapping(self, node: yaml.MappingNode, path: places.Path) -> dict[str, Any]:
        self._name_twins(node, path)
        result: dict[str, Any] = {}
        for source in self._merged(node):
            result = self.value(source, path) | result  # the first of several merged mappings wins
        for key_node, value_node in node.value:
            if key_node.tag == MERGE:
                continue
            if not isinstance(key_node, yaml.ScalarNode):
                raise Misread(self._place(key_node), "a key must be plain text")
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
                    raise Misread(self._place(source), "expected a mapping, or a list of mappings, after `<<`")
                yield source

    def _name_twins(self, node: yaml.MappingNode, path: places.Path) -> None:
        """Complain of a key, or a flag, that stands twice: YAML would silently take the last."""
        seen: dict[str, str] = {}
        for key_node, _ in node.value:
            if isinstance(key_node, yaml.ScalarNode) and key_node.tag != MERGE:
                key = key_node.value
                same = key.lstrip("-").replace("_", "-") if path[-1:] == ("args",) else key
                if same in seen:
                    other = f" (as `{seen[same]}`)" if seen[same] != key else ""
                    self._wrong(key_node, (*path, key), f"`{key}` stands twice in the same mapping{other}")
                seen[same] = key

    def _place(self, node: yaml.Node) -> Place:
        return Place(file=self.name, line=node.start_mark.line + 1, column=node.start_mark.column + 1)

    def _wrong(self, node: yaml.Node, path: places.Path, what: str) -> None:
        """Keep a complaint about one value, or raise it where nobody collects them."""
        if self.problems is None or len(self.problems) >= MAX_PROBLEMS:
            raise Misread(self._place(node), what)
        self.problems.append(Problem(place=self._place(node), path=path, field="", what=what))
