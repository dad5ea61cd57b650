"""`restart: gang`: where a worker of a run that serves dies, all of them start again and are proven again."""

import os
import signal

import pytest
from cheap_launch import CheapLaunch
from waiting import wait_until

GANG = {"policy": "gang", "times": 2, "backoff_s": 0}
ALL = {"prefill-0", "decode-0", "decode-1", "router"}


@pytest.fixture
def serving(home, tmp_path):
    """A run that serves, with this restart policy."""
    started = []

    def start(restart, **changes):
        started.append(CheapLaunch(tmp_path, restart=restart, **changes))
        started[-1].wait_for(" s  serving")
        return started[-1]

    yield start
    for one in started:
        one.kill()


def pids(run):
    return {process["name"]: process["pid"] for process in run.state["processes"]}


def phases(run):
    return [event["phase"] for event in run.events("run")]


def kill(run, name):
    os.kill(pids(run)[name], signal.SIGKILL)


def serves_again(run, times):
    wait_until(lambda: phases(run).count("serving") == times + 1, 60)


def test_all_start_again_when_one_dies(serving):
    """Its peers would wait for the dead one: they know its old agent, and take no other in its place."""
    run = serving(GANG)
    run.ask("decode-0", "/say/the_first_time")
    before = pids(run)
    kill(run, "decode-1")
    serves_again(run, 1)
    after = pids(run)
    assert all(after[name] != before[name] for name in ALL)
    assert run.left().keys() == ALL
    assert {process["phase"] for process in run.state["processes"]} == {"proven"}
    assert {process["starts"] for process in run.state["processes"]} == {2}
    said = [event["text"] for event in run.events("run")]
    assert "restarting: all prefill and decode workers to start again after decode-1 died, in 0 s" in said
    again = phases(run)[phases(run).index("restarting") :]
    assert again[1] == "starting"
    assert "probing" in again[:-1], "no word of serving before a new proof"
    assert len(run.events("pair")) == 4
    stopped = [event["process"] for event in run.events("process") if event["phase"] == "stopped"]
    assert stopped[0] == "router", "nobody is to send requests to a gang that cannot answer them"
    assert run.disagg("logs", "decode-0").stdout == "listening\n"
    assert "the_first_time" in (run.run / "logs" / "decode-0.log.1").read_text()
    run.process.send_signal(signal.SIGTERM)
    assert run.ended() == 0


def test_a_router_is_started_again_alone(serving):
    """It holds no KV."""
    run = serving(GANG)
    before = pids(run)
    kill(run, "router")
    serves_again(run, 1)
    after = pids(run)
    assert {name for name in ALL if after[name] != before[name]} == {"router"}
    assert "starting" not in phases(run)[phases(run).index("restarting") :]


def test_not_more_often_than_said(serving):
    run = serving(GANG | {"times": 1})
    kill(run, "decode-0")
    serves_again(run, 1)
    kill(run, "decode-0")
    assert run.ended() == 4
    assert run.events("restart")[-1]["text"] == "no more restarts: 1 within 3600 s"
    assert [crash["process"] for crash in run.state["crashes"]] == ["decode-0", "decode-0"]
    assert run.state["restarts"] == 1


def test_what_has_never_served_is_not_started_again(home, tmp_path):
    """It would fail again, and again take minutes for it."""
    dies = {"tp": 1, "env": {"CHEAP_LAST": "no such thing"}}
    run = CheapLaunch(tmp_path, restart=GANG, decode=dies)
    try:
        assert run.ended(60) == 4
        assert run.state["restarts"] == 0
    finally:
        run.kill()


def test_a_stop_while_it_waits_to_start_again(serving):
    run = serving(GANG | {"backoff_s": 300})
    kill(run, "decode-0")
    run.wait_for("restarting")
    wait_until(lambda: not run.left())
    run.process.send_signal(signal.SIGTERM)
    assert run.ended() == 130


def test_a_stop_in_the_middle_of_ending_the_gang(serving):
    """Those that were being ended are ended all the same."""
    run = serving(GANG)
    kill(run, "decode-0")
    run.wait_for("restarting")
    run.process.send_signal(signal.SIGTERM)
    assert run.ended() in (0, 130)
