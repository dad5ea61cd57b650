"""Options that several commands share."""

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout; text goes to stderr.")]
Run = Annotated[
    str | None,
    typer.Option("--run", help="Name of a run, or of a topology; else the last run.", show_default=False),
]
Set = Annotated[list[str], typer.Option("--set", help="Change a value first: prefill.tp=8. May be repeated.")]
Unset = Annotated[list[str], typer.Option("--unset", help="Take a value away first: decode.args.page-size.")]
Variant = Annotated[str | None, typer.Option(help="Only this variant of the file.", show_default=False)]
Executor = Annotated[
    str | None, typer.Option(help="Where to run, whatever the topology says: local, slurm.", show_default=False)
]
