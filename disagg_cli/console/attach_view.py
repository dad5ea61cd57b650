"""A run as `disagg attach` shows it: its events as its launch prints them, and on a terminal its table below."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from disagg_cli.console.launch_view import where_everything_is
from disagg_cli.console.status_view import below, status_table
from disagg_cli.runtime.follow import Follower


def show_attached(follower: Follower, out: Console) -> None:
    """Show a run until it has ended. What ended it without a word is raised."""
    with below(out, lambda: status_table(follower.now)):
        for event in follower.until("ended"):
            out.print(_line(event), soft_wrap=True)
            if event.get("kind") == "run" and event.get("phase") == follower.now.phase == "serving":
                out.print(where_everything_is(follower.directory))


def _line(event: Mapping[str, Any]) -> Text:
    after = f"{event['t']:6.1f} s" if "t" in event else " " * 8
    return Text.assemble((f"{after}  ", "dim"), str(event["text"]))
