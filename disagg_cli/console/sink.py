"""The one place where commands' results reach a person or a program.

A command hands over a value twice: as something rich can show, and as a plain document. With `--json` stdout carries
exactly one JSON document and all text goes to stderr.
"""

import json
import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console, RenderableType
from rich.text import Text

from disagg_cli.errors import DisaggError


def console(*, as_json: bool = False) -> Console:
    """A console for human text: stdout, or stderr where stdout belongs to a JSON document."""
    return Console(stderr=as_json, highlight=False, emoji=False, soft_wrap=not sys.stdout.isatty())


def show(human: RenderableType, document: Mapping[str, Any], *, as_json: bool) -> None:
    """Print a result, as text or as one JSON document."""
    if as_json:
        write_json(document)
    else:
        console().print(human)


def write_json(document: Mapping[str, Any]) -> None:
    """Print one JSON document on stdout."""
    sys.stdout.write(json.dumps(document, indent=2) + "\n")
    sys.stdout.flush()


def show_error(error: DisaggError, *, as_json: bool) -> None:
    """Print what happened, where, and what to do."""
    out = Console(stderr=True, highlight=False, emoji=False, soft_wrap=True)
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
