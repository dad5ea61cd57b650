"""`disagg render`: what a launch would submit or start, as text."""

from pathlib import Path
from typing import Annotated

import typer

from disagg_cli.cli.options import Executor, Json, Set, Unset, Variant


def render(
    config: Annotated[Path, typer.Argument(help="The topology, a YAML file.", show_default=False)],
    executor: Executor = None,
    variant: Variant = None,
    sets: Set = [],  # noqa: B006  # Typer makes a new list for each call
    unsets: Unset = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """Print the sbatch script of a topology, or the commands that other executors would run."""
    from disagg_cli.console.sink import write_json, write_text
    from disagg_cli.runtime.prepare import prepare
    from disagg_cli.runtime.submission import rendered
    from disagg_cli.topology.loading import with_executor
    from disagg_cli.topology.reading import refuse_stdin

    changes = with_executor(executor, config, variant=variant, sets=sets, unsets=unsets)
    prepared = prepare(config, variant=variant, sets=changes, unsets=unsets)
    if prepared.deployment.executor == "slurm":
        refuse_stdin(config, "the script's launch")
    options = [word for one in sets for word in ("--set", one)] + [w for one in unsets for w in ("--unset", one)]
    options += ["--variant", variant] if variant else []
    text = rendered(prepared, [*options, *(["--executor", executor] if executor else [])])
    if as_json:
        write_json({"schema": "disagg.render/1", "executor": prepared.deployment.executor, "text": text})
    else:
        write_text(text)
