"""Where each value of a topology was written, so that whatever is said about it can name file, line and column."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Path = tuple[str | int, ...]
"""Keys and indices from the top of the document: ("decode", 0, "tp")."""

_PART = re.compile(r"\[(\d+)\]|([^.\[\]]+)|\[([^\]]*)\]")


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Place:
    """A position in a file, counted from 1; line 0 where the value came from the command line."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """One thing that is wrong with a document, and what is wanted in its place.

    kind: `unknown` for a key that there is none of, `missing` for one that has to be there, else `value`.
    meant: the key, or the value, that most likely is wanted, if one is likely.
    """

    place: Place
    path: Path
    field: str
    what: str
    kind: str = "value"
    meant: Any = None

    @property
    def sentence(self) -> str:
        """The problem with its place."""
        return f"{self.place}: {self.field}: {self.what}" if self.field else f"{self.place}: {self.what}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Places:
    """The places of all written values. Paths may name a lone pool with or without its index, and flags as spelt."""

    file: str = "topology"
    known: Mapping[Path, Place] = field(default_factory=dict)

    def at(self, where: str | Path) -> Place:
        """The place of a value, or of what it would stand in."""
        path = parse_path(where) if isinstance(where, str) else where
        for candidate in self._candidates(path):
            if candidate in self.known:
                return self.known[candidate]
        return Place(file=self.file, line=1, column=1)

    def in_pool(self, where: str) -> bool:
        """Whether a flag or variable was written in the pool itself; true where no places are known."""
        path = parse_path(where)
        found = next((candidate for candidate in self._spellings(path) if candidate in self.known), path)
        return found[0] == path[0]

    def _candidates(self, path: Path) -> Iterator[Path]:
        """The path and its ancestors; a setting that no pool has is looked for under `engine`."""
        yield from self._spellings(path)
        while len(path) > 1:
            path = path[:-1]
            yield from self._spellings(path)

    def _spellings(self, path: Path) -> Iterator[Path]:
        yield path
        if len(path) > 1 and path[1] == 0:
            yield (path[0], *path[2:])
        elif len(path) > 1 and path[0] in ("prefill", "decode"):
            yield (path[0], 0, *path[1:])
        if len(path) > 2 and path[-2] in ("args", "env") and path[0] in ("prefill", "decode"):
            yield ("engine", *path[-2:])
        if len(path) > 2 and path[-2] == "args":
            yield from self._as_spelt(path)

    def _as_spelt(self, path: Path) -> Iterator[Path]:
        """Keys of `args` that mean the same flag: `--page_size` for `page-size`, in the pool or under `engine`."""
        parents = [path[:-1], (path[0], *path[2:-1]), (path[0], 0, *path[1:-1]), ("engine", "args")]
        for known in self.known:
            if known[:-1] in parents and str(known[-1]).lstrip("-").replace("_", "-") == path[-1]:
                yield known


def parse_path(text: str) -> Path:
    """`decode[1].args.page-size` as ("decode", 1, "args", "page-size"). Empty where the text names nothing."""
    return tuple(int(index) if index else name or odd for index, name, odd in _PART.findall(text))


def dotted(path: Path) -> str:
    """The inverse of parse_path."""
    said = "".join(f"[{part}]" if isinstance(part, int) else f".{part or repr(part)}" for part in path)
    return said.removeprefix(".") or "topology"
