"""The frame of all commands: version, help, errors, exit codes, signals."""

import errno
import json
import signal
import subprocess
import sys

import pytest
from command_line import DISAGG, disagg
from runs import a_run, process

from disagg_cli import __version__
from disagg_cli.cli.app import app
from disagg_cli.cli.options import Json
from disagg_cli.errors import DisaggError, LaunchFailed, PlanRefused

FAILURES = [DisaggError, *DisaggError.__subclasses__()]


@pytest.fixture
def boom():
    """Run a command that fails like this."""

    def run(failure, *args):
        def boom(as_json: Json = False) -> None:
            raise failure

        app.command()(boom)
        try:
            return disagg(*args, "boom") if "--json" not in args else disagg("boom", *args)
        finally:
            app.registered_commands.pop()

    return run


def test_version():
    done = disagg("--version")
    assert (done.returncode, done.stdout) == (0, f"disagg {__version__}\n")


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_shows_every_command(flag):
    done = disagg(flag)
    assert done.returncode == 0
    assert all(command in done.stdout for command in ("plan", "launch", "status", "logs", "stop", "eval"))


def test_without_a_command_there_is_help():
    assert "Usage: disagg" in disagg().stdout


@pytest.mark.parametrize("args", [["nope"], ["launch"], ["launch", "x", "--nope"], ["logs", "-n", "x"]])
def test_a_wrong_command_line_exits_2(args):
    done = disagg(*args)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Usage:" in done.stderr


def test_as_a_module():
    done = subprocess.run([sys.executable, "-m", "disagg_cli", "--version"], capture_output=True, text=True)
    assert done.stdout == f"disagg {__version__}\n"


def test_a_failure_is_a_sentence(boom):
    done = boom(PlanRefused("it hangs", where="decode", fix="upgrade"))
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "error: it hangs\n  where: decode\n  fix:   upgrade\n"


@pytest.mark.parametrize("kind", FAILURES)
def test_every_failure_ends_in_its_exit_code(boom, kind):
    assert boom(kind("x")).returncode == kind.exit_code


def test_an_internal_error_is_a_sentence_too(boom):
    done = boom(ZeroDivisionError("division by zero"))
    assert done.returncode == 1
    assert done.stderr == (
        "error: internal error: ZeroDivisionError: division by zero\n"
        "  fix:   run again with `disagg --debug ...` and report the traceback\n"
    )


@pytest.mark.parametrize("failure", [ZeroDivisionError("x"), PlanRefused("no")])
def test_debug_shows_the_traceback_and_keeps_the_exit_code(boom, failure):
    done = boom(failure, "--debug")
    assert "Traceback" in done.stderr
    assert done.returncode == getattr(failure, "exit_code", 1)


@pytest.mark.parametrize(("failure", "code"), [(PlanRefused("no"), 3), (ZeroDivisionError("x"), 1)])
def test_a_failure_is_a_document_for_a_program(boom, failure, code):
    done = boom(failure, "--json")
    document = json.loads(done.stdout)
    assert (done.returncode, document["exit_code"], document["ok"]) == (code, code, False)
    assert document["schema"] == "disagg.error/1"


def test_a_full_disk_is_no_internal_error(boom):
    """Whichever command has something to write down, as `stop` what it has ended."""
    done = boom(OSError(errno.ENOSPC, "No space left on device", "/runs/x/state.json"))
    assert done.returncode == LaunchFailed.exit_code
    assert "disk full: No space left on device" in done.stderr
    assert "make room" in done.stderr


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_command_with_130(home, signum):
    """`logs -f` of a run that goes on: the one of this process."""
    recorder = a_run(process("decode-0"))
    recorder.directory.log("decode-0").write_text("ready\n")
    with subprocess.Popen([DISAGG, "logs", "-f"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as command:
        assert command.stdout.readline().endswith("ready\n")
        command.send_signal(signum)
        _, stderr = command.communicate(timeout=40)
    assert command.returncode == 130
    assert stderr == f"error: interrupted by {signal.Signals(signum).name}\n"


@pytest.mark.parametrize(
    "moment",
    [
        "atexit.register(ctrl_c)",
        "tell = sink.show_error; sink.show_error = lambda *error, **how: (ctrl_c(), tell(*error, **how))",
    ],
    ids=["as it leaves", "as it tells of a failure"],
)
def test_a_signal_when_all_is_over_takes_no_exit_code(tmp_path, moment):
    """Whoever presses Ctrl-C once too often sees no traceback either."""
    (tmp_path / "late.py").write_text(
        "import atexit, os, signal\n"
        "from disagg_cli.cli.app import main\n"
        "from disagg_cli.console import sink\n"
        "ctrl_c = lambda: os.kill(os.getpid(), signal.SIGINT)\n"
        f"{moment}\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, tmp_path / "late.py", "explain", "nope"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert "error: no finding is called 'nope'" in done.stderr


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(("command", "code"), [("models", 0), ("status --run nope", 2)])
def test_streams_that_are_closed(home, closed, command, code):
    """As by a daemon that keeps none."""
    done = subprocess.run(f"{DISAGG} {command} {closed}", shell=True, capture_output=True, timeout=60)
    assert done.returncode == code


def test_a_terminal_that_lacks_a_character(monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    done = subprocess.run(
        [DISAGG, "plan", "--prefill-tp", "2", "--decode-tp", "1"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, r"NVLink 5 (MNNVL) 2.39 ms \xb7 NVLink 4" in done.stdout) == (0, True)


def test_a_reader_that_leaves_is_no_internal_error():
    """`disagg plan ... | head -1`."""
    done = subprocess.run(
        f"{DISAGG} plan --prefill-tp 4 --decode-tp 1 | true", shell=True, capture_output=True, text=True, timeout=60
    )
    assert "internal error" not in done.stderr
    assert "Traceback" not in done.stderr
