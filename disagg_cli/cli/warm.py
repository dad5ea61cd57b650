"""`disagg warm`: SGLang imported once, for every launch on this machine's CPUs."""

import re
from typing import Annotated

import typer

from disagg_cli.cli.options import Json
from disagg_cli.errors import UsageError
from disagg_cli.settings import WARM

app = typer.Typer(
    name="warm",
    help="Keep SGLang imported between launches on CPUs: they fork their servers from it, in seconds.",
    no_args_is_help=True,
)

UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
LONGEST_S = 30 * UNITS["d"]


def _seconds(text: str) -> float:
    """Read `90`, `30m`, `1.5h`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd]?)", text.strip())
    seconds = float(found[1]) * UNITS[found[2]] if found else 0.0
    if not 0 < seconds <= LONGEST_S:
        raise UsageError(f"not a time to live: {text}", fix="such as 90s, 30m, 2h, 1d; 30d is the longest")
    return seconds


@app.command()
def up(
    ttl: Annotated[str, typer.Option(help="End it so long after it was last used: 30m, 2h.")] = f"{WARM.ttl / 3600:g}h",
    as_json: Json = False,
) -> None:
    """Import SGLang in the background, unless that has been done; launches of this DISAGG_HOME then use it.

    Where the installed code, or the environment that SGLang reads while it is imported, has changed since, a parent
    that serves nobody is replaced, and one that does is refused.
    """
    from disagg_cli.console.sink import console, show
    from disagg_cli.console.warm_view import document, up_text
    from disagg_cli.executors.kept_parent import Place, bring_up
    from disagg_cli.executors.warm import parent_environment
    from disagg_cli.runtime import rundir

    seconds = _seconds(ttl)
    out = console(as_json=as_json, lasting=True)
    place = Place.of(rundir.home())
    kept, new = bring_up(
        place, ttl_s=seconds, environment=parent_environment(), say=lambda text: out.print(text, markup=False)
    )
    show(up_text(kept, new=new), document(kept, place) | {"new": new}, as_json=as_json)


@app.command()
def status(as_json: Json = False) -> None:
    """Show the parent that is up: how old it is, since when it idles, its memory and its servers."""
    from disagg_cli.console.sink import show
    from disagg_cli.console.warm_view import document, status_table
    from disagg_cli.executors.kept_parent import Place, look
    from disagg_cli.runtime import rundir

    place = Place.of(rundir.home())
    found = document(look(place), place)
    show(status_table(found), found, as_json=as_json)


@app.command()
def down(
    force: Annotated[bool, typer.Option("--force", help="End servers that it still has, too.")] = False,
    as_json: Json = False,
) -> None:
    """End the parent. Refused while servers that were forked from it run, unless --force ends them, too."""
    from disagg_cli.console.sink import console, show
    from disagg_cli.console.warm_view import document, down_text
    from disagg_cli.executors.kept_parent import Place, take_down
    from disagg_cli.runtime import rundir

    out = console(as_json=as_json, lasting=True)
    place = Place.of(rundir.home())
    ended = take_down(place, force=force, say=lambda text: out.print(text, markup=False))
    ran = [dict(server) for server in ended.servers] if ended else []
    show(down_text(ended), document(None, place) | {"ended": ended and ended.pid, "servers": ran}, as_json=as_json)
