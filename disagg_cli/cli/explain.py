"""`disagg explain`: what a finding's code means, what happens otherwise, and where that is known from."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Annotated

import typer

from disagg_cli.cli.options import Json
from disagg_cli.errors import UsageError


def explain(
    code: Annotated[
        str | None, typer.Argument(help="A code or name, such as DSG502; all of them without it.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Explain a finding: why it matters, what to do, and its source.

    Example: disagg explain DSG502
    """
    from disagg_cli.console.check_view import codes_view, explain_view
    from disagg_cli.console.sink import show
    from disagg_cli.findings.finding import catalogue

    entries = [entry for entry in catalogue().values() if code is None or _named(code, entry.code, entry.name)]
    if code is not None and not entries:
        raise UsageError(f"no finding is called {code!r}", fix=_fix(code, catalogue()))
    document = {"schema": "disagg.explain/1", "findings": [asdict(entry) for entry in entries]}
    show(explain_view(entries[0]) if code else codes_view(entries), document, as_json=as_json)


def _named(asked: str, code: str, name: str) -> bool:
    return asked.upper() in (code, code.removeprefix("DSG")) or asked.lower() == name


def _fix(asked: str, known: Iterable[str]) -> str:
    import difflib

    near = difflib.get_close_matches(asked.upper(), list(known), n=3)
    return f"one of {', '.join(near)}; `disagg explain` lists all" if near else "`disagg explain` lists all"
