"""Makes flags.yaml: which flags each SGLang release knows, read from its source without importing it.

`python -m disagg_cli.engine.flag_lists WHEEL... > flags.yaml` takes wheels in any order; an installed SGLang's folder
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
BOOLEAN = ("bool", "Optional[bool]", "bool | None")
ENVIRONMENT = re.compile(r"\bSGLANG_[A-Z0-9_]*[A-Z0-9]\b")


@dataclass(kw_only=True)
class Found:
    """What one release knows: flags with their kind (`switch` takes no value), what is deprecated, and environment."""

    switches: set[str] = field(default_factory=set)
    values: set[str] = field(default_factory=set)
    deprecated: set[str] = field(default_factory=set)
    environment: set[str] = field(default_factory=set)

    def add(self, names: list[str], *, switch: bool, deprecated: bool) -> None:
        """Take in one flag with all its spellings."""
        spelt = {name.removeprefix("--") for name in names}
        (self.switches if switch else self.values).update(spelt)
        if deprecated:
            self.deprecated |= spelt


def read_installed(folder: Path) -> Found:
    """Read the flags, and no environment, of the SGLang in a folder: a second, where all of it would take many."""
    found = Found()
    sources = [folder / "sglang/srt/server_args.py", *sorted((folder / "sglang/srt/arg_groups").rglob("*.py"))]
    for path in sources:
        if path.is_file():
            _read_flags(ast.parse(path.read_text(errors="replace")), found)
    found.values -= found.switches
    return found


def read_release(place: Path) -> Found:
    """Read a wheel, or a folder that holds `sglang/`."""
    found = Found()
    for name, text in _files(place):
        found.environment |= set(ENVIRONMENT.findall(text))
        if SOURCES.search(name):
            _read_flags(ast.parse(text), found)
    found.values -= found.switches
    return found


def read_router(folder: Path) -> Found:
    """Read the router's flags below a folder that holds `sglang_router/`."""
    found = Found()
    for path in sorted((folder / "sglang_router").glob("*.py")):
        _read_flags(ast.parse(path.read_text()), found)
    return found


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


def _read_flags(tree: ast.Module, found: Found) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            _read_argument(node, found)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            _read_field(node.target.id, node.annotation, found)


def _read_argument(call: ast.Call, found: Found) -> None:
    """`parser.add_argument("--a", "--b", action=..., help=...)`; the router prefixes names with f"--{prefix}"."""
    names = [name for arg in call.args if (name := _flag_name(arg))]
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    action = ast.unparse(keywords["action"]) if "action" in keywords else ""
    if names:
        names += [f"--no-{names[0][2:]}"] if "BooleanOptional" in action else []
        switch = any(word in action for word in SWITCH)
        found.add(names, switch=switch, deprecated="Deprecated" in action or _deprecated(keywords.get("help")))


def _flag_name(arg: ast.expr) -> str | None:
    if isinstance(arg, ast.JoinedStr) and len(arg.values) == 3 and isinstance(arg.values[2], ast.Constant):
        return f"--{arg.values[2].value!s}"
    if isinstance(arg, ast.Constant) and isinstance(arg.value, str) and arg.value.startswith("--"):
        return arg.value
    return None


def _read_field(name: str, annotation: ast.expr, found: Found) -> None:
    """`name: A[type, "help"]` or `name: A[type, Arg(...)]`; a field without such a note has no flag."""
    if not (isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "A"):
        return
    parts = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else []
    call = next((part for part in parts[1:] if isinstance(part, ast.Call) and ast.unparse(part.func) == "Arg"), None)
    notes = {keyword.arg: keyword.value for keyword in call.keywords} if call else {}
    if _truth(notes.get("no_cli")):
        return
    names = [_text(notes.get("cli_name")) or name.replace("_", "-"), *_texts(notes.get("aliases"))]
    switch = ast.unparse(parts[0]) in BOOLEAN and not {"type_parser", "nargs", "choices"} & set(notes)
    action = ast.unparse(notes["action"]) if "action" in notes else ""
    names += [f"no-{names[0]}"] if "BooleanOptional" in action else []
    switch = switch or any(word in action for word in SWITCH)
    help_text = notes.get("help") or (parts[1] if len(parts) > 1 else None)
    found.add(names, switch=switch, deprecated="Deprecated" in action or _deprecated(help_text))


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
        for kind in ("switches", "values", "deprecated", "environment"):
            old, new = getattr(before, kind), getattr(found, kind)
            entry |= {f"+{kind}": " ".join(sorted(new - old))} if new - old else {}
            entry |= {f"-{kind}": " ".join(sorted(old - new))} if old - new else {}
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
            "flags": " ".join(sorted(found.switches | found.values)),
        }
    sys.stdout.write("# Made by `python -m disagg_cli.engine.flag_lists`: each release has what changed in it.\n")
    yaml.safe_dump(document, sys.stdout, sort_keys=False, width=118)


def _version(place: Path, package: str) -> str:
    if place.is_file():
        return place.name.split("-")[1]
    return next(place.glob(f"{package}-*.dist-info")).name.split("-")[1].removesuffix(".dist")


if __name__ == "__main__":
    main([Path(argument) for argument in sys.argv[1:]])
