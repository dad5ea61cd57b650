"""`disagg import`: topologies from what others write."""

from pathlib import Path
from typing import Annotated

import typer

from disagg_cli.cli.options import Json

app = typer.Typer(help="Read another tool's configuration as a topology.", no_args_is_help=True)


@app.callback()
def formats() -> None:
    """Read another tool's configuration as a topology."""


@app.command()
def srtctl(
    recipe: Annotated[Path, typer.Argument(help="A recipe of NVIDIA/srt-slurm.", show_default=False)],
    out: Annotated[Path | None, typer.Option(help="File to write; default: stdout.", show_default=False)] = None,
    variant: Annotated[
        str | None, typer.Option(help="Only this variant or sweep point of the recipe.", show_default=False)
    ] = None,
    platform: Annotated[
        str | None, typer.Option(help="The platform, where the recipe leaves it to the cluster.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Write an srtctl recipe as a topology, and say what it could not carry over.

    Example: disagg import srtctl recipe.yaml --out topology.yaml && disagg check topology.yaml
    """
    from disagg_cli.console.sink import console, write_json
    from disagg_cli.errors import UsageError
    from disagg_cli.topology.platforms import platforms
    from disagg_cli.topology.srtctl_variants import import_recipe

    if platform is not None and platform not in platforms():
        raise UsageError(f"unknown platform {platform!r}", fix=f"known: {', '.join(platforms())}")
    imported = import_recipe(recipe, variant, platform)
    err = console(as_json=True)
    if out:
        try:
            out.write_text(imported.text(), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"cannot write {out}: {error.strerror}") from None
    elif not as_json:
        typer.echo(imported.text(), nl=False)
    for line in imported.left:
        err.print(f"not carried over: {line}", markup=False)
    if as_json:
        write_json({"schema": "disagg.import/1", "topology": imported.topology, "left": list(imported.left)})
