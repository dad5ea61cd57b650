"""Options that several commands share."""

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout; text goes to stderr.")]
Run = Annotated[str | None, typer.Option("--run", help="Name of a run; the last one without it.", show_default=False)]
