"""The command tree, and the one place where an error becomes a sentence and an exit code."""

import io
import os
import signal
import sys
import traceback
from types import FrameType
from typing import Annotated, NoReturn

import typer

from disagg_cli import __version__
from disagg_cli.cli import (
    attach,
    check,
    connector,
    drill,
    explain,
    import_,
    launch,
    models,
    plan,
    probe,
    rehearse,
    render,
    schema,
    status,
    warm,
)
from disagg_cli.cli import eval as evaluation
from disagg_cli.errors import DisaggError, Interrupted

app = typer.Typer(
    name="disagg",
    help="Launch and validate SGLang prefill/decode disaggregated serving over NIXL.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
COMMANDS = (
    *(check.check, plan.plan, rehearse.rehearse, render.render, launch.launch),
    *(attach.attach, status.status, status.ps, status.logs, status.stop),
    *(probe.probe, drill.drill),
    *(explain.explain, schema.schema, models.models),
)
for command in COMMANDS:
    app.command()(command)
app.add_typer(warm.app, name="warm")
app.add_typer(connector.app, name="connector")
app.add_typer(import_.app, name="import")
app.add_typer(evaluation.app, name="eval")


def _version(*, asked: bool) -> None:
    if asked:
        sys.stdout.write(f"disagg {__version__}\n")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=lambda asked: _version(asked=asked),
            is_eager=True,
            help="Print the version.",
        ),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """Options that every command knows."""
    del (
        version,
        debug,
    )  # --version has acted already; main() reads --debug, which must work even where parsing fails


def _interrupt(signum: int, _frame: FrameType | None) -> NoReturn:
    raise Interrupted(f"interrupted by {signal.Signals(signum).name}")


def _open_streams() -> None:
    """Let what was closed (`>&-`) lead nowhere: Python has no stream for it, and takes the next file in its place."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
    for stream in (sys.stdout, sys.stderr):  # a terminal that lacks a character shows its number
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def main() -> None:
    """Run the command line and leave with its exit code."""
    _open_streams()
    heard = [one for one in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(one) is not signal.SIG_IGN]
    for signum in heard:
        signal.signal(signum, _interrupt)
    end = _run()
    for signum in heard:  # nothing is left to be interrupted: one Ctrl-C too many would only take the exit code
        signal.signal(signum, signal.SIG_IGN)
    sys.exit(_report(end) if isinstance(end, Exception) else end)


def _run() -> Exception | str | int | None:
    """What a command has failed with, or how it wants to leave."""
    try:
        app()
    except SystemExit as end:
        return end.code
    except Exception as error:  # noqa: BLE001 - the one place where every failure becomes a sentence
        return error
    return None


def _report(error: Exception) -> int:
    from disagg_cli.console.sink import show_error
    from disagg_cli.runtime import disk, rundir

    if "--debug" in sys.argv:
        traceback.print_exception(error)
    if isinstance(error, OSError) and disk.is_full(error):
        error = disk.no_room(rundir.home(), error)
    if not isinstance(error, DisaggError):
        error = DisaggError(
            f"internal error: {type(error).__name__}: {error}",
            fix="run again with `disagg --debug ...` and report the traceback",
        )
    show_error(error, as_json="--json" in sys.argv)
    return error.exit_code
