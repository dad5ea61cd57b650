"""`disagg attach`: a run followed from another terminal."""

import json
import signal
import subprocess
import sys

import pytest
from command_line import disagg
from runs import a_run, gone, process
from waiting import wait_until


@pytest.fixture
def run(home):
    """A run that serves."""
    recorder = a_run(process("decode-0"))
    recorder.process_phase("decode-0", "starting")
    recorder.run_phase("serving")
    return recorder


def end(recorder, exit_code, reason):
    recorder.state.exit_code, recorder.state.reason = exit_code, reason
    recorder.run_phase("ended")


@pytest.fixture
def attached(run, tmp_path):
    """A view of the run, and what it shows."""
    with (tmp_path / "out").open("wb") as out:
        view = subprocess.Popen([sys.executable, "-m", "disagg_cli", "attach"], stdout=out, stderr=out)
    yield view, (tmp_path / "out").read_text
    view.kill()
    view.wait(10)


def test_a_run_from_its_beginning_to_its_end(run, attached):
    view, shown = attached
    wait_until(lambda: "disagg logs [WORKER] [-f]" in shown(), 60)
    assert "s  decode-0 starting\n" in shown()
    end(run, 0, "stopped")
    assert view.wait(60) == 0
    assert shown().endswith("s  ended\n")


def test_its_exit_code_is_the_runs(run, attached):
    view, shown = attached
    end(run, 5, "no KV moved")
    assert view.wait(60) == 5
    assert "error: the run ended: no KV moved" in shown()


def test_ctrl_c_ends_the_view_alone(run, attached):
    view, shown = attached
    wait_until(lambda: "serving" in shown(), 60)
    view.send_signal(signal.SIGINT)
    assert view.wait(60) == 130
    assert "detached from demo-" in shown()
    assert run.directory.read("state.json")["phase"] == "serving"


def test_a_run_whose_supervisor_goes(home):
    a_run(supervisor=gone())
    done = disagg("attach")
    assert done.returncode == 4
    assert "is gone" in done.stderr


@pytest.mark.parametrize(
    ("exit_code", "schema"), [(0, "disagg.launch/1"), (1, "disagg.error/1"), (6, "disagg.error/1")]
)
def test_for_a_program(run, exit_code, schema):
    end(run, exit_code, "the reason")
    done = disagg("attach", run.state.run, "--json")
    assert done.returncode == exit_code
    assert json.loads(done.stdout)["schema"] == schema
