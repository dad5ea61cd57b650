"""`disagg probe`: prove again that KV moves, and moves right, between every pair of a run that serves."""

import typer

from disagg_cli.cli.options import Json, Run


def probe(run: Run = None, as_json: Json = False) -> None:
    """Drive every prefill/decode pair of a run, and compare decode's log-probabilities with prefill's.

    Exits 0 where every pair moved the right KV, and 5 otherwise.
    """
    import asyncio

    from disagg_cli.console.probe_view import probe_table
    from disagg_cli.console.sink import show
    from disagg_cli.errors import ProbeFailed
    from disagg_cli.runtime import rundir
    from disagg_cli.runtime.reprobe import probe_run

    result = asyncio.run(probe_run(rundir.find(run)))
    show(probe_table(result), result.document(), as_json=as_json)
    if not result.ok:
        raise typer.Exit(ProbeFailed.exit_code)
