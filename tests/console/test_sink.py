"""Where results and errors go: text to people, one JSON document to programs."""

import json
import os
import subprocess
import sys

import pytest
from rich.table import Table

from disagg_cli.console import sink
from disagg_cli.errors import PlanRefused, UsageError

DOCUMENT = {"schema": "disagg.x/1", "value": 1}


def test_text_for_a_person(capsys):
    sink.show("all is well", DOCUMENT, as_json=False)
    assert capsys.readouterr() == ("all is well\n", "")


def test_a_document_for_a_program(capsys):
    sink.show("all is well", DOCUMENT, as_json=True)
    out, err = capsys.readouterr()
    assert (json.loads(out), err) == (DOCUMENT, "")


def test_with_json_text_goes_to_stderr(capsys):
    sink.console(as_json=True).print("starting")
    assert capsys.readouterr() == ("", "starting\n")


def test_long_lines_are_not_broken_where_no_terminal_is(capsys):
    """A command line that was broken cannot be copied."""
    sink.console().print("x" * 500)
    assert capsys.readouterr().out == "x" * 500 + "\n"


def test_a_table(capsys):
    table = Table(box=None)
    table.add_column("worker")
    table.add_row("decode-0")
    sink.show(table, DOCUMENT, as_json=False)
    assert "decode-0" in capsys.readouterr().out


def shown(capsys, error, as_json=False):
    sink.show_error(error, as_json=as_json)
    return capsys.readouterr()


def test_an_error(capsys):
    out, err = shown(capsys, UsageError("a.yaml:3:1: unknown key", where="a.yaml", fix="remove it"))
    assert out == ""
    assert err == "error: a.yaml:3:1: unknown key\n  where: a.yaml\n  fix:   remove it\n"


def test_an_error_that_knows_no_more(capsys):
    assert shown(capsys, UsageError("no")).err == "error: no\n"


def test_an_error_for_a_program(capsys):
    out, err = shown(capsys, PlanRefused("it hangs", fix="upgrade"), as_json=True)
    assert json.loads(out) == {
        "schema": "disagg.error/1",
        "ok": False,
        "exit_code": 3,
        "kind": "PlanRefused",
        "what": "it hangs",
        "where": None,
        "fix": "upgrade",
    }
    assert err.startswith("error: it hangs")


@pytest.mark.parametrize(
    "text",
    [
        "t.yaml:100:5: line 100 is no emoji",
        "host:x: nor is this",
        "decode[0].tp",
        "[red]not red[/red] [/]",
        "a\\[b]",
        "C:\\",
        "a" * 300,
        "{'a': 1} <x> 'quoted' 10.0.0.1 http://x/y",
    ],
)
def test_values_are_shown_as_they_are(capsys, text):
    err = shown(capsys, UsageError(text, where=text, fix=text)).err
    assert err == f"error: {text}\n  where: {text}\n  fix:   {text}\n"


def closed_pipe():
    """A pipe that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def closed_terminal():
    """A terminal that has gone: to write there is EIO."""
    master, terminal = os.openpty()
    os.close(master)
    return terminal


OUTLIVES_ITS_SCREEN = """
from rich.live import Live
from disagg_cli.console import sink
from disagg_cli.errors import ProbeFailed
out = sink.console(lasting=True)
out.print("a line")
with Live("a table", console=out, auto_refresh=False):
    out.print("a line above it")
sink.show("a result", {}, as_json=False)
sink.show_error(ProbeFailed("no KV moved"), as_json=True)
raise SystemExit(ProbeFailed.exit_code)
"""


@pytest.mark.parametrize("screen", [closed_pipe, closed_terminal])
def test_what_lasts_outlives_its_screen(screen):
    """It ends with its own exit code, which a last flush of Python's would make 120."""
    gone = screen()
    program = [sys.executable, "-c", OUTLIVES_ITS_SCREEN]
    assert subprocess.run(program, stdout=gone, stderr=gone, stdin=subprocess.DEVNULL, timeout=60).returncode == 5
    os.close(gone)


def test_what_follows_ends_with_its_screen():
    """As `disagg attach | head` should."""
    program = "from disagg_cli.console import sink; sink.console().print('x'); raise SystemExit(5)"
    gone = closed_pipe()
    assert subprocess.run([sys.executable, "-c", program], stdout=gone, timeout=60).returncode == 1
    os.close(gone)
