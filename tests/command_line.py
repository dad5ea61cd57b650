"""The command as a user runs it: in this process where that is enough, because a process of its own costs a second."""

import contextlib
import io
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from disagg_cli.cli.app import main

DISAGG = Path(sys.executable).with_name("disagg")


@dataclass(frozen=True)
class Done:
    """How a command ended, and what it printed."""

    returncode: int
    stdout: str
    stderr: str


def disagg(*args: str | Path) -> Done:
    """Run `disagg ARGS` to its end."""
    out, err = io.StringIO(), io.StringIO()
    with _arguments(*args), _signals_kept(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
            code = 0
        except SystemExit as leaving:
            code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    return Done(code, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def _arguments(*args: str | Path) -> Iterator[None]:
    kept, sys.argv = sys.argv, ["disagg", *map(str, args)]
    try:
        yield
    finally:
        sys.argv = kept


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    kept = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for signum, handler in kept.items():
            signal.signal(signum, handler)
