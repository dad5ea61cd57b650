"""`disagg probe`: prove again that KV moves, and moves right, between every pair of a run that serves."""

from typing import Annotated

import typer

from disagg_cli.cli.options import Json, Run


def probe(
    run: Run = None,
    parity: Annotated[
        bool, typer.Option("--parity/--no-parity", help="Compare decode's log-probabilities with prefill's.")
    ] = True,
    times: Annotated[int, typer.Option(min=1, max=10_000, help="So many rounds, one after another.")] = 1,
    as_json: Json = False,
) -> None:
    """Drive every prefill/decode pair of a run, and compare decode's log-probabilities with prefill's.

    Exits 0 where every pair moved the right KV, and 5 otherwise.
    """
    from itertools import count

    from disagg_cli.console.probe_view import probe_table, round_line
    from disagg_cli.console.sink import console, show
    from disagg_cli.errors import ProbeFailed
    from disagg_cli.runtime import rundir
    from disagg_cli.runtime.interruption import until_interrupted
    from disagg_cli.runtime.reprobe import Round, probe_run

    out, numbers = console(as_json=as_json, lasting=True), count(1)

    def done(one: Round) -> None:
        if times > 1:
            out.print(round_line(next(numbers), one))

    result = until_interrupted(probe_run(rundir.find(run), parity=parity, times=times, done=done))
    show(probe_table(result), result.document(), as_json=as_json)
    if not result.ok:
        raise typer.Exit(ProbeFailed.exit_code)
