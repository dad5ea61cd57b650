"""Makes flags.yaml: which flags each SGLang release knows, read from its source without importing it.

`python -m disagg_cli.topology.flag_lists WHEEL... > flags.yaml` takes wheels in any order; an installed SGLang's folder
(the parent of `sglang/`) serves as well. Releases list only what changed since the one before. From 0.5.17 on SGLang
declares most flags as annotated fields (`name: A[type, Arg(...)]`), before as `add_argument` calls; both are read.
"""

import ast
import re
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from packaging.version import Version

SOURCES = re.compile(r"sglang/srt/(server_args\.py|arg_groups/.*\.py)$")
SWITCH = ("store_true", "store_false", "StoreTrue", "BooleanOptional", "DeprecatedAction")
ENVIRONMENT = re.compile(r"\bSGLANG_[A-Z0-9_]*[A-Z0-9]\b")
KINDS = ("switches", "values", "ints", "floats", "lists", "optional", "deprecated", "environment")

Names = dict[str, list[str]]
"""Constants of the source that hold words, such as ATTENTION_BACKEND_CHOICES."""


@dataclass(kw_only=True)
class Found:
    """What one release knows, flags without their dashes.

    switches take no value and values do; of these ints and floats take a number, lists several words, optional ones may
    stand alone, and choices have the words that they accept. deprecated: flags; environment: variables.
    """

    switches: set[str] = field(default_factory=set)
    values: set[str] = field(default_factory=set)
    ints: set[str] = field(default_factory=set)
    floats: set[str] = field(default_factory=set)
    lists: set[str] = field(default_factory=set)
    optional: set[str] = field(default_factory=set)
    deprecated: set[str] = field(default_factory=set)
    environment: set[str] = field(default_factory=set)
    choices: dict[str, list[str]] = field(default_factory=dict)

    def add(self, names: list[str], flag: "Flag") -> None:
        """Take in one flag with all its spellings."""
        spelt = {name.removeprefix("--") for name in names}
        (self.switches if flag.switch else self.values).update(spelt)
        said = (
            (flag.type == "int", self.ints),
            (flag.type == "float", self.floats),
            (flag.several, self.lists),
            (flag.optional, self.optional),
            (flag.old, self.deprecated),
        )
        for true, names_of_kind in said:
            names_of_kind.update(spelt if true else ())
        if flag.choices:
            self.choices |= dict.fromkeys(spelt, flag.choices)

    def settled(self) -> "Found":
        """The same with each flag of one kind: what is declared twice is a switch."""
        for kind in ("values", "ints", "floats", "lists"):
            getattr(self, kind).difference_update(self.switches)
        self.choices = {name: words for name, words in self.choices.items() if name in self.values}
        return self


@dataclass(frozen=True, kw_only=True, slots=True)
class Flag:
    """How one flag is declared. several: it takes a list; optional: it may stand without its value."""

    switch: bool
    type: str = ""
    several: bool = False
    optional: bool = False
    old: bool = False
    choices: list[str] = field(default_factory=list)


def read_installed(folder: Path) -> Found:
    """Read the flags, and no environment, of the SGLang in a folder: a second, where all of it would take many."""
    sources = [folder / "sglang/srt/server_args.py", *sorted((folder / "sglang/srt/arg_groups").rglob("*.py"))]
    return _found([ast.parse(path.read_text(errors="replace")) for path in sources if path.is_file()])


def read_release(place: Path) -> Found:
    """Read a wheel, or a folder that holds `sglang/`."""
    environment: set[str] = set()
    trees = []
    for name, text in _files(place):
        environment |= set(ENVIRONMENT.findall(text))
        if SOURCES.search(name):
            trees.append(ast.parse(text))
    found = _found(trees)
    found.environment = environment
    return found


def read_router(folder: Path) -> Found:
    """Read the router's flags below a folder that holds `sglang_router/`."""
    return _found([ast.parse(path.read_text()) for path in sorted((folder / "sglang_router").glob("*.py"))])


def _found(trees: list[ast.Module]) -> Found:
    found = Found()
    names: Names = {}
    for tree in trees:
        names |= _constants(tree)
    for tree in trees:
        _read_flags(tree, names, found)
    return found.settled()


def _constants(tree: ast.Module) -> Names:
    """The module's own lists of words."""
    names: Names = {}
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and isinstance(value, ast.expr) and (words := _words(value, names)):
            names[target.id] = words
    return names


def _words(node: ast.expr | None, names: Names) -> list[str]:
    """The words of a list, a name for one, or several added up; none where the source computes them."""
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        words = [_text(item) for item in node.elts]
        return [word for word in words if word] if all(words) else []
    if isinstance(node, ast.Name):
        return names.get(node.id, [])
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _words(node.left, names), _words(node.right, names)
        return left + right if left and right else []
    return []


def _files(place: Path) -> Iterator[tuple[str, str]]:
    """The Python files below sglang/srt, each with its text."""
    if place.is_file():
        with zipfile.ZipFile(place) as wheel:
            for name in wheel.namelist():
                if name.startswith("sglang/srt/") and name.endswith(".py"):
                    yield name, wheel.read(name).decode(errors="replace")
        return
    for path in sorted((place / "sglang/srt").rglob("*.py")):
        yield str(path), path.read_text(errors="replace")


def _read_flags(tree: ast.Module, names: Names, found: Found) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            _read_argument(node, names, found)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            _read_field(node.target.id, node.annotation, names, found)


def _read_argument(call: ast.Call, names: Names, found: Found) -> None:
    """`parser.add_argument("--a", "--b", action=..., help=...)`; the router prefixes names with f"--{prefix}"."""
    spelt = [name for arg in call.args if (name := _flag_name(arg))]
    notes = {keyword.arg: keyword.value for keyword in call.keywords}
    if spelt:
        kind = ast.unparse(notes["type"]) if "type" in notes else ""
        found.add(*_flag(spelt, notes, names, kind=kind, switch=False))


def _flag_name(arg: ast.expr) -> str | None:
    if isinstance(arg, ast.JoinedStr) and len(arg.values) == 3 and isinstance(arg.values[2], ast.Constant):
        return f"--{arg.values[2].value!s}"
    if isinstance(arg, ast.Constant) and isinstance(arg.value, str) and arg.value.startswith("--"):
        return arg.value
    return None


OPTIONAL = re.compile(r"^Optional\[(.*)\]$|^(.*?) \| None$")
LIST = re.compile(r"^[Ll]ist\[(.*)\]$")


def _read_field(name: str, annotation: ast.expr, names: Names, found: Found) -> None:
    """`name: A[type, "help"]` or `name: A[type, Arg(...)]`; a field without such a note has no flag."""
    if not (isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "A"):
        return
    parts = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else []
    call = next((part for part in parts[1:] if isinstance(part, ast.Call) and ast.unparse(part.func) == "Arg"), None)
    notes = {keyword.arg: keyword.value for keyword in call.keywords} if call else {}
    if _truth(notes.get("no_cli")):
        return
    notes.setdefault("help", parts[1] if len(parts) > 1 else ast.Constant(""))
    spelt = [_text(notes.get("cli_name")) or name.replace("_", "-"), *_texts(notes.get("aliases"))]
    kind = _inner(OPTIONAL, ast.unparse(parts[0]))
    if (item := _inner(LIST, kind)) != kind and "type_parser" not in notes:
        kind = item
        notes.setdefault("nargs", ast.Constant("+"))
    if "type_parser" in notes:
        kind = ""
    if words := re.findall(r"'([^']*)'", kind) if kind.startswith("Literal[") else []:
        notes.setdefault("choices", ast.List([ast.Constant(word) for word in words], ast.Load()))
    switch = kind == "bool" and not {"nargs", "choices"} & set(notes)
    found.add(*_flag(spelt, notes, names, kind=kind, switch=switch))


def _inner(wrapper: re.Pattern[str], kind: str) -> str:
    match = wrapper.match(kind)
    return next(part for part in match.groups() if part is not None) if match else kind


def _flag(
    spelt: list[str], notes: dict[str | None, ast.expr] | dict[str, ast.expr], names: Names, *, kind: str, switch: bool
) -> tuple[list[str], Flag]:
    """All spellings of a flag, and how it is declared."""
    said: dict[Any, ast.expr] = dict(notes)
    action = ast.unparse(said["action"]) if "action" in said else ""
    nargs = ast.unparse(said["nargs"]).strip("'\"") if "nargs" in said else ""
    if "BooleanOptional" in action:
        spelt = [*spelt, f"--no-{spelt[0].removeprefix('--')}"]
    flag = Flag(
        switch=switch or any(word in action for word in SWITCH),
        type=kind,
        several=nargs not in ("", "?", "None") or "append" in action,
        optional=nargs in ("?", "*"),
        old="Deprecated" in action or _deprecated(said.get("help")),
        choices=_words(said.get("choices"), names),
    )
    return spelt, flag


def _truth(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and bool(node.value)


def _text(node: ast.expr | None) -> str | None:
    return str(node.value) if isinstance(node, ast.Constant) and node.value else None


def _texts(node: ast.expr | None) -> list[str]:
    items = node.elts if isinstance(node, ast.List) else []
    return [str(item.value) for item in items if isinstance(item, ast.Constant)]


def _deprecated(node: ast.expr | None) -> bool:
    """Whether the help text says so first: many mention that *another* flag is deprecated."""
    return node is not None and bool(re.match(r"[f(\"' \n\[]*(NOTE: )?deprecated", ast.unparse(node), re.IGNORECASE))


def changes(releases: dict[str, Found]) -> list[dict[str, Any]]:
    """One entry per release, oldest first, with what was added and removed since the one before."""
    entries: list[dict[str, Any]] = []
    before = Found()
    for name, found in sorted(releases.items(), key=lambda item: Version(item[0])):
        entry: dict[str, Any] = {"release": name, "source": f"sglang {name} wheel: srt/server_args.py, srt/arg_groups/"}
        for kind in KINDS:
            old, new = getattr(before, kind), getattr(found, kind)
            entry |= {f"+{kind}": " ".join(sorted(new - old))} if new - old else {}
            entry |= {f"-{kind}": " ".join(sorted(old - new))} if old - new else {}
        words = {flag: " ".join(said) for flag, said in sorted(found.choices.items())}
        before_words = {flag: " ".join(said) for flag, said in before.choices.items()}
        told = {flag: said for flag, said in words.items() if before_words.get(flag) != said}
        gone = sorted(before_words.keys() - words.keys())
        entry |= {"+choices": told} if told else {}
        entry |= {"-choices": " ".join(gone)} if gone else {}
        entries.append(entry)
        before = found
    return entries


def main(places: list[Path]) -> None:
    """Print flags.yaml."""
    releases = {_version(place, "sglang"): read_release(place) for place in places}
    document: dict[str, Any] = {"sglang": changes(releases)}
    for folder in (place for place in places if (place / "sglang_router").is_dir()):
        found, release = read_router(folder), _version(folder, "sglang_router")
        document["router"] = {
            "release": release,
            "source": f"sglang-router {release} wheel: router_args.py",
            **{kind: " ".join(sorted(getattr(found, kind))) for kind in KINDS if getattr(found, kind)},
            "choices": {flag: " ".join(words) for flag, words in sorted(found.choices.items())},
        }
    sys.stdout.write("# Made by `python -m disagg_cli.topology.flag_lists`: each release has what changed in it.\n")
    yaml.safe_dump(document, sys.stdout, sort_keys=False, width=118)


def _version(place: Path, package: str) -> str:
    if place.is_file():
        return place.name.split("-")[1]
    return next(place.glob(f"{package}-*.dist-info")).name.split("-")[1].removesuffix(".dist")


if __name__ == "__main__":
    main([Path(argument) for argument in sys.argv[1:]])
