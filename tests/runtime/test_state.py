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


def test_events_tell_the_whole_story(recorder, tmp_path):
    """A program can follow the state machine, and how long each step took, without the clock on the wall."""
    recorder.started(Handle(name="decode-0", host="node-1", pid=7, born=8.0, log=tmp_path / "log"))
    recorder.process_phase("decode-0", "healthy")
    started, healthy = events(recorder)
    assert (started["from"], started["phase"], started["pid"], started["host"]) == ("waiting", "starting", 7, "node-1")
    assert (healthy["from"], healthy["phase"]) == ("starting", "healthy")
    assert 0 <= started["t"] <= healthy["t"]
    assert healthy["after_s"] >= 0


def test_a_process_that_has_failed_is_not_healthy_any_more(recorder):
    for phase in ("starting", "failed", "healthy"):
        recorder.process_phase("decode-0", phase)
    assert [event["phase"] for event in events(recorder)] == ["starting", "failed"]


@pytest.fixture
def full(recorder):
    """The disk takes no more events: /dev/full says ENOSPC, like a full disk, to whoever writes."""
    file = recorder.directory.path / "events.jsonl"
    file.symlink_to("/dev/full")
    return file


def test_a_full_disk_ends_nothing_and_is_said_once(recorder, full):
    heard = []
    recorder.listeners.append(heard.append)
    recorder.run_phase("probing")
    recorder.run_phase("serving")
    assert [text.partition(":")[0] for text in heard] == ["probing", "disk full", "serving"]
    assert recorder.state.phase == "serving"


def test_events_wait_for_space(recorder, full):
    recorder.run_phase("probing")
    full.unlink()
    recorder.look_at_disk()
    assert [event["text"].partition(":")[0] for event in events(recorder)] == [
        "probing",
        "disk full",
        "the disk takes record and logs again",
    ]
    assert state(recorder)["disk"] == ""


def test_a_disk_without_room_is_noticed_before_anything_has_failed(recorder, monkeypatch):
    monkeypatch.setattr("disagg_cli.runtime.disk.room", lambda folder: 0)
    recorder.look_at_disk()
    assert state(recorder)["disk"].startswith("disk full")


def test_a_record_that_cannot_be_written_ends_the_launch(recorder):
    shutil.rmtree(recorder.directory.path)
    with pytest.raises(LaunchFailed, match="the run's record cannot be written"):
        recorder.run_phase("probing")


def test_a_record_that_cannot_be_written_does_not_stop_the_stopping(recorder):
    shutil.rmtree(recorder.directory.path)
    recorder.ending = True
    recorder.run_phase("stopping")
    assert recorder.state.phase == "stopping"
