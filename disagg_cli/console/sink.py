"""The one place where commands' results reach a person or a program.

A command hands over a value twice: as something rich can show, and as a plain document. With `--json` stdout carries
exactly one JSON document and all text goes to stderr.
"""

import contextlib
import json
import os
import sys
from collections.abc import Mapping
from typing import IO, Any, cast

from rich.console import Console, RenderableType
from rich.text import Text

from disagg_cli.errors import DisaggError


class _Lasting:
    """A stream whose writer outlives its reader: once a pipe is closed or a terminal gone, it leads nowhere."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write, and never fail because nobody reads."""
        try:
            return self._stream.write(text)
        except OSError:
            self._lead_nowhere()
            return len(text)

    def flush(self) -> None:
        """Flush, and never fail because nobody reads."""
        try:
            self._stream.flush()
        except OSError:
            self._lead_nowhere()

    def _lead_nowhere(self) -> None:
        """What is buffered goes there too: else Python's own flush at the exit would fail, and take the exit code."""
        with contextlib.suppress(OSError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)


def console(*, as_json: bool = False, lasting: bool = False) -> Console:
    """A console for human text: stdout, or stderr where stdout belongs to a JSON document.

    lasting: what is shown goes on, and comes to its own end, also when nobody can see it any more.
    """
    soft_wrap = not sys.stdout.isatty()
    file = _lasting(sys.stderr if as_json else sys.stdout) if lasting else None
    return Console(file=file, stderr=as_json, highlight=False, emoji=False, soft_wrap=soft_wrap)


def _lasting(stream: IO[str]) -> IO[str]:
    return cast(IO[str], _Lasting(stream))


def show(human: RenderableType, document: Mapping[str, Any], *, as_json: bool) -> None:
    """Print a result, as text or as one JSON document."""
    if as_json:
        write_json(document)
    else:
        console(lasting=True).print(human)


def write_json(document: Mapping[str, Any]) -> None:
    """Print one JSON document on stdout."""
    write_text(json.dumps(document, indent=2) + "\n")


def write_text(text: str) -> None:
    """Print text on stdout as it is."""
    out = _lasting(sys.stdout)
    out.write(text)
    out.flush()


def show_error(error: DisaggError, *, as_json: bool) -> None:
    """Print what happened, where, and what to do."""
    out = Console(file=_lasting(sys.stderr), highlight=False, emoji=False, soft_wrap=True)
    out.print(Text.assemble(("error: ", "bold red"), error.what))
    if error.where:
        out.print(Text.assemble(("  where: ", "bold"), error.where))
    if error.fix:
        out.print(Text.assemble(("  fix:   ", "bold"), error.fix))
    if as_json:
        write_json(
            {
                "schema": "disagg.error/1",
                "ok": False,
                "exit_code": error.exit_code,
                "kind": type(error).__name__,
                "what": error.what,
                "where": error.where,
                "fix": error.fix,
                **error.details,
            }
        )
