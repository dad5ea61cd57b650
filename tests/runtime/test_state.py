"""What is on record of a run: events.jsonl line by line, state.json as it is now."""

import json
import shutil

import pytest
from runs import a_run, process

from disagg_cli.errors import LaunchFailed
from disagg_cli.executors.protocol import Handle


@pytest.fixture
def recorder(home):
    return a_run(process("prefill-0"), process("decode-0"))


def state(recorder):
    return recorder.directory.read("state.json")


def events(recorder):
    return [json.loads(line) for line in (recorder.directory.path / "events.jsonl").read_text().splitlines()]


def test_the_state_before_anything_has_happened(recorder):
    now = state(recorder)
    assert (now["schema"], now["phase"], now["exit_code"]) == ("disagg.state/1", "starting", None)
    assert [(p["name"], p["role"], p["phase"], p["pid"]) for p in now["processes"]] == [
        ("prefill-0", "prefill", "waiting", None),
        ("decode-0", "decode", "waiting", None),
    ]


def test_a_phase_of_the_run(recorder):
    recorder.run_phase("probing", "2 pairs to move KV")
    assert (state(recorder)["phase"], state(recorder)["waiting_for"]) == ("probing", "2 pairs to move KV")
    (event,) = events(recorder)
    assert (event["kind"], event["phase"], event["text"]) == ("run", "probing", "probing: 2 pairs to move KV")


def test_a_phase_of_a_process(recorder):
    recorder.process_phase("decode-0", "failed", "exit code 3")
    (event,) = events(recorder)
    assert event["text"].startswith("decode-0 failed after 0.0 s: exit code 3")
    assert state(recorder)["processes"][1]["detail"] == "exit code 3"


def test_the_same_phase_again_is_no_event(recorder):
    for _ in range(3):
        recorder.process_phase("decode-0", "starting")
    assert [event["text"] for event in events(recorder)] == ["decode-0 starting"]


def test_a_process_that_was_started_is_on_record_at_once(recorder, tmp_path):
    """`disagg stop` finds it there, whatever happens to this process next."""
    recorder.started(Handle(name="decode-0", host="localhost", pid=7, born=8.0, log=tmp_path / "log"))
    decode = state(recorder)["processes"][1]
    assert (decode["pid"], decode["born"], decode["phase"]) == (7, 8.0, "starting")


def test_listeners_hear_what_a_person_reads(recorder):
    heard = []
    recorder.listeners.append(heard.append)
    recorder.event("pair", "prefill-0 -> decode-0: KV moved")
    assert heard == ["prefill-0 -> decode-0: KV moved"]


def test_a_record_that_cannot_be_written_ends_the_launch(recorder):
    shutil.rmtree(recorder.directory.path)
    with pytest.raises(LaunchFailed, match="the run's record cannot be written"):
        recorder.run_phase("probing")


def test_a_record_that_cannot_be_written_does_not_stop_the_stopping(recorder):
    shutil.rmtree(recorder.directory.path)
    recorder.ending = True
    recorder.run_phase("stopping")
    assert recorder.state.phase == "stopping"
