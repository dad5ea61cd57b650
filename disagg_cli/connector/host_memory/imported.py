"""What one import of SGLang has read, so that nobody is served by a parent that no longer fits.

Two things can make a forked server differ from one that is started cold: the installed code has changed since the
import, or the import has read environment variables that are set otherwise for the server.
"""

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

LIBRARIES_READ = ("LD_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "MALLOC_", "GLIBC_", "NIXL_")
"""Beginnings of variables that C libraries read when they are loaded; Python cannot see them do it."""

INTERPRETER_READS = ("PYTHONPATH", "PYTHONHASHSEED")
"""Read when Python starts, and of consequence for what a server does."""

OF_THE_TERMINAL = frozenset(
    {"PATH", "PWD", "OLDPWD", "SHLVL", "_", "TERM", "COLUMNS", "LINES", "COLORTERM", "NO_COLOR", "FORCE_COLOR"}
    | {"DISPLAY", "EDITOR", "PAGER", "BROWSER", "LANG", "LC_ALL", "TZ", "USER", "LOGNAME", "SHELL"}
)
"""Differ between two shells of one person, and change nothing that a server computes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Imported:
    """An import, as it was. files: path -> (package, change time and size); environment: what was read, None if unset;
    seconds: how long it took."""

    files: Mapping[str, tuple[str, tuple[int, int]]]
    environment: Mapping[str, str | None]
    seconds: float

    def changed(self) -> tuple[str, ...]:
        """Packages of which a file is not as it was imported. Some 7,000 looks, 30 ms."""
        return tuple(sorted({package for file, (package, was) in self.files.items() if _mark(file) != was}))

    def differing(self, environment: Mapping[str, str]) -> tuple[str, ...]:
        """Variables, set otherwise here, that the import has read."""
        also = {name for name in (*self.environment, *environment) if _is_read_unseen(name)}
        return tuple(
            sorted(
                name
                for name in (also | set(self.environment)) - OF_THE_TERMINAL
                if environment.get(name) != self.environment.get(name)
            )
        )


def import_and_note(imports: Callable[[], None]) -> Imported:
    """Import, and note what was read."""
    begun = time.monotonic()
    with _noting_reads() as reads:
        imports()
    unseen = {name: value for name, value in os.environ.items() if _is_read_unseen(name)}
    return Imported(files=_files(), environment=reads | unseen, seconds=time.monotonic() - begun)


def _is_read_unseen(name: str) -> bool:
    return name.startswith(LIBRARIES_READ) or name in INTERPRETER_READS


@contextmanager
def _noting_reads() -> Iterator[dict[str, str | None]]:
    """Note each variable that is asked for, with its value before: what an import sets itself is not the user's."""
    before, found, copying = dict(os.environ), dict[str, str | None](), deque[str]()
    plain = type(os.environ)

    class Noting(plain):  # type: ignore[valid-type, misc]
        """The environment, which remembers what it was asked for. `get` and `in` come through here, too."""

        def __getitem__(self, name: str) -> str:
            if copying and copying[0] == name:
                copying.popleft()
            else:
                copying.clear()
                found[name] = before.get(name)
            return str(super().__getitem__(name))

        def __iter__(self) -> Iterator[str]:
            """Whoever asks for all of them in turn makes a copy, as for a subprocess, and reads none for itself."""
            copying.clear()
            copying.extend(super().__iter__())
            return iter(list(copying))

    os.environ.__class__ = Noting
    try:
        yield found
    finally:
        os.environ.__class__ = plain


def _files() -> dict[str, tuple[str, tuple[int, int]]]:
    found = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and (mark := _mark(file)):
            found[file] = (name.partition(".")[0], mark)
    return found


def _mark(file: str) -> tuple[int, int] | None:
    try:
        status = os.stat(file)  # noqa: PTH116 - 7,000 Path objects would take longer than the looks
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
