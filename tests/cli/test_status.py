"""`disagg status`, `ps`, `logs` and `stop`, from another terminal than the launch's."""

import json
import signal
import subprocess

import pytest
from command_line import disagg
from runs import SLEEP, a_run, gone, process
from waiting import wait_until

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


def test_a_supervisor_that_is_suspended(home):
    with subprocess.Popen(SLEEP, start_new_session=True) as supervisor:
        a_run(process("decode-0"), supervisor=supervisor.pid)
        supervisor.send_signal(signal.SIGSTOP)
        wait_until(lambda: sessions.suspended(supervisor.pid), 60)
        said = f"its supervisor is suspended and sees nothing (`kill -CONT {supervisor.pid}` wakes it)"
        assert said in disagg("status").stdout
        assert f"{supervisor.pid}, suspended" in disagg("ps").stdout
        supervisor.kill()


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
    assert (done.returncode, done.stdout) == (
        0,
        f"{recorder.state.run} had ended before; `disagg ps` lists the runs that go on\n",
    )


def test_stop_ends_what_outlived_its_supervisor(home):
    with subprocess.Popen(SLEEP, start_new_session=True) as worker:
        a_run(process("decode-0", worker.pid), supervisor=gone())
        done = disagg("stop", "--json")
        assert not sessions.members(worker.pid)
    document = json.loads(done.stdout)
    assert (done.returncode, document["leftovers"]) == (0, ["decode-0"])


def test_watching_a_run_that_has_ended(home):
    recorder = a_run(process("decode-0", phase="starting"), supervisor=gone())
    recorder.run_phase("ended")
    done = disagg("status", "--watch")
    assert done.returncode == 0
    assert done.stdout.count(f"{recorder.state.run}: ended") == 1
    document = json.loads(disagg("status", "--watch", "--json").stdout)
    assert (document["schema"], document["phase"]) == ("disagg.status/1", "ended")


def test_ps_of_nothing(home):
    done = disagg("ps")
    assert (done.returncode, done.stdout.startswith("no run is going on")) == (0, True)


def test_ps(home):
    first = a_run(process("decode-0", phase="starting"), name="first").state.run
    second = a_run(name="second", supervisor=gone()).state.run
    out = disagg("ps").stdout
    assert [line.split()[0] for line in out.splitlines()[1:3]] == [second, first]
    assert "lost" in out
    assert "1 of 1" in out
    assert "disagg ps --clean" in out


def test_ps_on_a_narrow_screen_names_runs_in_full(home, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    run = a_run(*map(process, ("prefill-0", "decode-0")), name="a-topology-with-a-longer-name").state.run
    assert run in disagg("ps").stdout


@pytest.mark.parametrize("command", ["status", "stop", "attach", "probe", "eval gsm8k"])
def test_a_run_that_cannot_be_read(home, command):
    (a_run().directory.path / "state.json").write_text("{")
    done = disagg(*command.split())
    assert (done.returncode, done.stderr.startswith("error: state.json of demo-")) == (2, True)
    assert "state.json of demo-" in disagg("ps").stdout


def test_ps_for_a_program(home):
    a_run(process("decode-0"))
    document = json.loads(disagg("ps", "--json").stdout)
    (run,) = document["runs"]
    assert (document["schema"], document["cleaned"], document["unreadable"]) == ("disagg.ps/1", [], [])
    assert (run["name"], run["phase"], run["supervised"], run["stale"]) == ("demo", "starting", True, False)


def test_ps_clean_that_fails(home):
    """What is left of the others is ended all the same."""
    with subprocess.Popen(SLEEP, start_new_session=True) as left:
        a_run(process("decode-0", left.pid), name="lost", supervisor=gone())
        a_run(name="broken", supervisor=gone()).directory.write("deployment.json", {"executor": "nowhere"})
        done = disagg("ps", "--clean", "--json")
        assert not sessions.members(left.pid)
    assert done.returncode == 4
    errors = {one["run"].partition("-")[0]: one["error"] for one in json.loads(done.stdout)["cleaned"]}
    assert errors["lost"] == ""
    assert errors["broken"].startswith("there is no nowhere executor")


def test_ps_clean(home):
    with subprocess.Popen(SLEEP, start_new_session=True) as worker:
        run = a_run(process("decode-0", worker.pid), supervisor=gone()).state.run
        done = disagg("ps", "--clean")
        assert not sessions.members(worker.pid)
    assert done.stdout.splitlines()[0] == f"{run}: ended decode-0"
    assert "no run is going on" in done.stdout


def test_logs_for_a_program(logged):
    document = json.loads(disagg("logs", "-n", "1", "--json").stdout)
    assert document["schema"] == "disagg.logs/1"
    assert document["lines"] == [
        {"process": "decode-0", "line": "three [x]"},
        {"process": "prefill-0", "line": "three [x]"},
    ]


def test_one_document_has_an_end(logged):
    assert disagg("logs", "-f", "--json").returncode == 2
