"""`disagg drill`: plant faults in the connector, and see the proof of readiness find each of them."""

from pathlib import Path
from typing import Annotated

import typer

from disagg_cli.cli.options import Json


def drill(
    config: Annotated[Path, typer.Argument(help="A topology with `platform: cpu`.", show_default=False)],
    fault: Annotated[
        list[str] | None, typer.Option("--fault", help="Only this one; can be repeated.", show_default=False)
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=1, help="Seconds that each pair has: a fault that hangs takes them.")
    ] = 45,
    as_json: Json = False,
) -> None:
    """Launch with one fault after another, CPU only, and show what the proof of readiness finds.

    Exits 0 where each fault is found and the healthy deployment is not suspected, and 5 otherwise.
    """
    from disagg_cli.console.drill_view import drill_line, drill_table
    from disagg_cli.console.sink import console, show
    from disagg_cli.errors import ProbeFailed
    from disagg_cli.runtime.drill import run_drills
    from disagg_cli.runtime.interruption import until_interrupted

    out = console(as_json=as_json, lasting=True)
    drills = until_interrupted(run_drills(config, fault or [], timeout, lambda one: out.print(drill_line(one))))
    ok = all(one.ok for one in drills)
    document = {"schema": "disagg.drill/1", "drills": [one.document() for one in drills], "ok": ok}
    show(drill_table(drills), document, as_json=as_json)
    if not ok:
        raise typer.Exit(ProbeFailed.exit_code)
