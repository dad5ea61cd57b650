"""What a run leaves on disk, and going on with one that ended early."""

import asyncio
import errno
import json
import os

import pytest
from mini_runs import GOLDS, QUESTIONS, interrupted, resume, run, samples
from mock_server import MockServer, hangs, says, serving

from disagg_cli.errors import EvalUndecided, UsageError
from disagg_cli.evals.record import read_facts, read_run
from disagg_cli.evals.report import build
from disagg_cli.evals.run import run_gsm8k
from disagg_cli.evals.settings import EvalSettings
from disagg_cli.evals.states import State
from disagg_cli.evals.statistics import Outcome


def test_resume_asks_only_what_is_left(tmp_path):
    interrupted(tmp_path)
    with (tmp_path / "samples.jsonl").open("a") as log:
        log.write('{"id": "test-20", "torn')
    server = MockServer(GOLDS)
    report = resume(server, tmp_path)
    assert (len(server.seen), report.counts[State.CORRECT], report.facts.stopped) == (30, 40, None)
    assert len(samples(tmp_path)) == 40
    assert len({entry["rid"] for entry in samples(tmp_path)}) == 40
    assert sorted(entry["order"] for entry in samples(tmp_path)) == list(range(40))


@pytest.mark.parametrize(
    "changed", [{"seed": 1, "questions": 39}, {"max_tokens": 5}, {"scorer": "strict"}, {"shots": 4}]
)
def test_resume_refuses_another_run(tmp_path, changed):
    interrupted(tmp_path)
    with pytest.raises(UsageError, match="the run to resume was another"):
        resume(MockServer(GOLDS), tmp_path, **changed)


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    server = MockServer(GOLDS)
    with pytest.raises(UsageError, match="cannot write: Not a directory") as caught:
        run(server, tmp_path / "file" / "out")
    assert caught.value.fix == "name a folder that can be written to"
    assert server.seen == []


def test_a_full_disk_ends_the_run_and_can_be_resumed(tmp_path, monkeypatch):
    write, room = os.write, [6000]

    def narrow(file, data):
        took = write(file, data[: room[0]]) if room[0] else 0
        room[0] -= took
        if not took:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return took

    monkeypatch.setattr("disagg_cli.evals.record.os.write", narrow)
    with pytest.raises(EvalUndecided, match="cannot write: No space left on device") as caught:
        run(MockServer(GOLDS), tmp_path, concurrency=2)
    assert caught.value.fix == "make room, then go on with --resume"
    kept = (tmp_path / "samples.jsonl").read_bytes().count(b"\n")
    assert 0 < kept < 10
    monkeypatch.undo()
    server = MockServer(GOLDS)
    assert resume(server, tmp_path).counts[State.CORRECT] == 40
    assert len(server.seen) == 40 - kept


def test_an_earlier_run_in_the_same_folder_is_kept(tmp_path):
    run(MockServer(GOLDS, default=says("#### 7")), tmp_path, questions=3)
    run(MockServer(GOLDS), tmp_path, questions=5)
    assert (len(samples(tmp_path)), (tmp_path / "samples.earlier.jsonl").read_bytes().count(b"\n")) == (5, 3)


@pytest.mark.parametrize("line", ["{", "null", '{"id": "test-0"}', "\xff"])
def test_a_damaged_line_has_an_address(tmp_path, line):
    interrupted(tmp_path)
    with (tmp_path / "samples.jsonl").open("a", encoding="latin-1") as log:
        log.write(f"\n{line}\n")
    with pytest.raises(UsageError, match="not a sample") as caught:
        resume(MockServer(GOLDS), tmp_path)
    assert caught.value.where.endswith("samples.jsonl:12")
    assert "--resume asks its question again" in caught.value.fix


def test_samples_of_another_run_are_refused(tmp_path):
    run(MockServer(GOLDS), tmp_path / "other", questions=40)
    interrupted(tmp_path, questions=12)
    with (tmp_path / "samples.jsonl").open("a") as log:
        log.write((tmp_path / "other" / "samples.jsonl").read_text())
    with pytest.raises(UsageError, match="samples of another run: 28 questions that this run did not ask"):
        resume(MockServer(GOLDS), tmp_path, questions=12)


def test_every_attempt_has_its_own_request_id(tmp_path):
    interrupted(tmp_path)
    server = MockServer(GOLDS)
    resume(server, tmp_path)
    assert {body["rid"].rpartition("-")[2] for body in server.seen} == {"2"}
    assert json.loads((tmp_path / "summary.json").read_text())["attempt"] == 2


def test_the_time_between_two_attempts_is_not_the_runs(tmp_path):
    run(MockServer(GOLDS), tmp_path)
    lines = samples(tmp_path)
    for entry in lines[:20]:
        entry["started_at"] -= 86400
    (tmp_path / "samples.jsonl").write_text("".join(f"{json.dumps(entry)}\n" for entry in lines))
    assert resume(MockServer(GOLDS), tmp_path).wall_s < 60


def test_a_run_that_was_killed_after_its_last_answer_is_judged(tmp_path):
    run(MockServer(GOLDS), tmp_path, baseline=0.9, margin=0.1)
    (tmp_path / "summary.json").unlink()
    report = build(*read_run(tmp_path), read_facts(tmp_path))
    assert report.verdict.outcome is Outcome.PASS


def test_cancelled_runs_write_what_there_is(tmp_path):
    async def cancelled():
        server = MockServer(GOLDS, {QUESTIONS[39]: hangs})
        async with serving(server):
            answered = asyncio.Event()
            settings = EvalSettings(dataset="mini")
            work = run_gsm8k(settings, server.url, tmp_path, lambda now: now.done < 39 or answered.set())
            task = asyncio.ensure_future(work)
            await answered.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(cancelled())
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["stopped"], summary["counts"]["correct"], summary["counts"]["skipped"]) == ("interrupted", 39, 1)
