"""What a launch shows, and where everything is."""

import io

import pytest
from deployments import ROOT
from rich.console import Console
from runs import a_run, process

from disagg_cli.console.launch_view import LaunchView, dry_run, show_plan, where_everything_is
from disagg_cli.runtime.prepare import prepare


@pytest.fixture
def recorder(home):
    return a_run(*(process(name, phase="starting") for name in ("prefill-0", "decode-0", "router")))


def screen(**more):
    """A console whose text can be read back."""
    return Console(file=io.StringIO(), width=120, highlight=False, **more)


def text(renderable):
    out = screen()
    out.print(renderable)
    return out.file.getvalue()


def lines(out):
    return [line.partition(" s  ")[2] for line in out.file.getvalue().splitlines()]


def test_plain_lines_where_no_terminal_is(recorder):
    out = screen()
    view = LaunchView(recorder, out)
    with view.live():
        recorder.run_phase("starting", "workers to be healthy")
        recorder.process_phase("decode-0", "loading")
    assert lines(out) == ["starting: workers to be healthy", "decode-0 loading"]


def test_every_line_says_when(recorder):
    out = screen()
    LaunchView(recorder, out)
    recorder.event("x", "something")
    assert out.file.getvalue() == "   0.0 s  something\n"


def test_lines_are_shown_as_they_are(recorder):
    out = screen()
    LaunchView(recorder, out)
    said = "decode-0 failed: [red]x[/] :100: " + "y" * 200
    recorder.event("x", said)
    assert lines(out) == [said]


def test_a_live_table_on_a_terminal(recorder):
    out = screen(force_terminal=True)
    with LaunchView(recorder, out).live():
        recorder.run_phase("probing", "2 pairs to move KV")
        recorder.process_phase("prefill-0", "healthy")
        recorder.process_phase("decode-0", "proven")
    shown = out.file.getvalue()
    assert "KV proven" in shown
    assert "waiting for 2 pairs to move KV" in shown


def test_where_everything_is(recorder):
    shown = text(where_everything_is(recorder.directory))
    assert "http://127.0.0.1:8000/v1/completions" in shown
    assert str(recorder.directory.path) in shown
    assert all(f"disagg {command}" in shown for command in ("logs", "eval gsm8k", "stop"))


def test_a_path_that_is_wider_than_the_screen(tmp_path, monkeypatch):
    """It goes on in the next line, and loses nothing."""
    monkeypatch.setenv("DISAGG_HOME", str(tmp_path / ("x" * 200)))
    directory = a_run().directory
    assert str(directory.path) in "".join(text(where_everything_is(directory)).split())


def test_a_path_with_brackets(tmp_path, monkeypatch):
    monkeypatch.setenv("DISAGG_HOME", str(tmp_path / "[red]x[/blue]"))
    assert "[red]x[/blue]" in text(where_everything_is(a_run().directory))


def test_the_plan_and_the_commands(home):
    prepared = prepare(ROOT / "configs/1p2d-cpu.yaml")
    out = screen()
    show_plan(prepared, out)
    assert "The plan holds." in out.file.getvalue()
    blocks = dry_run(prepared).plain.split("\n\n")
    assert [block.splitlines() for block in blocks] == [
        [f"# {c.name} on localhost", c.shell()] for c in prepared.commands
    ]
