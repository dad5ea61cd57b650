"""`disagg status`, `logs` and `stop`, from another terminal than the launch's."""

import json
import subprocess

import pytest
from command_line import disagg
from runs import SLEEP, a_run, gone, process

from disagg_cli.executors import sessions


@pytest.mark.parametrize("command", [["status"], ["logs"], ["stop"], ["status", "--json"]])
def test_without_a_run(home, command):
    done = disagg(*command)
    assert done.returncode == 2
    assert "there is no run yet" in done.stderr


@pytest.mark.parametrize("command", ["status", "logs", "stop"])
def test_a_run_that_does_not_exist(home, command):
    run = a_run().state.run
    done = disagg(command, "--run", "nope")
    assert done.returncode == 2
    assert f"the newest are: {run}" in done.stderr


def test_status(home):
    recorder = a_run(process("decode-0", phase="starting"))
    recorder.process_phase("decode-0", "proven")
    done = disagg("status")
    assert done.returncode == 0
    assert f"{recorder.state.run}: starting" in done.stdout
    assert "KV proven" in done.stdout


def test_status_for_a_program(home):
    recorder = a_run(process("decode-0"))
    document = json.loads(disagg("status", "--json").stdout)
    assert (document["schema"], document["run"]) == ("disagg.status/1", recorder.state.run)
    assert (document["phase"], document["supervised"]) == ("starting", True)
    assert [p["name"] for p in document["processes"]] == ["decode-0"]


def test_status_of_another_run(home):
    first = a_run(name="first").state.run
    a_run(name="second")
    assert f"{first}: starting" in disagg("status", "--run", first).stdout


@pytest.fixture
def logged(home):
    recorder = a_run(process("prefill-0"), process("decode-0"))
    for name in ("prefill-0", "decode-0"):
        recorder.directory.log(name).write_text("one\ntwo\nthree [x]\n")
    return recorder


def test_logs_of_all(logged):
    assert disagg("logs", "-n", "1").stdout == "decode-0     | three [x]\nprefill-0    | three [x]\n"


def test_logs_of_one(logged):
    assert disagg("logs", "decode-0", "--lines", "2").stdout == "two\nthree [x]\n"


def test_no_lines(logged):
    assert disagg("logs", "-n", "0").stdout == ""


def test_logs_of_nobody(logged):
    done = disagg("logs", "decode-9")
    assert done.returncode == 2
    assert "there are: decode-0, prefill-0" in done.stderr


def test_following_a_run_that_has_ended(logged):
    logged.run_phase("ended")
    assert disagg("logs", "decode-0", "-f").stdout == "one\ntwo\nthree [x]\n"


def test_stop_of_a_run_that_has_ended(home):
    recorder = a_run(supervisor=gone())
    recorder.run_phase("ended")
    done = disagg("stop")
    assert (done.returncode, done.stdout) == (0, f"{recorder.state.run} has ended\n")


def test_stop_ends_what_outlived_its_supervisor(home):
    with subprocess.Popen(SLEEP, start_new_session=True) as worker:
        a_run(process("decode-0", worker.pid), supervisor=gone())
        done = disagg("stop", "--json")
        assert not sessions.members(worker.pid)
    document = json.loads(done.stdout)
    assert (done.returncode, document["leftovers"]) == (0, ["decode-0"])
