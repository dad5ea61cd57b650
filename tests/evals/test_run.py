"""Whole runs against a server that fails on purpose."""

import asyncio
import json
import time
from xml.etree import ElementTree as ET

import pytest
from mini_runs import GOLDS, QUESTIONS, QUICK, run, samples
from mock_server import (
    MockServer,
    chats,
    cuts,
    drips,
    errors_in_stream,
    forgets_done,
    generates,
    hangs,
    says,
    serving,
    stalls,
    talks_garbage,
    unavailable,
)

from disagg_cli.errors import EvalUndecided, UsageError
from disagg_cli.evals.baseline import Baseline, read_baseline
from disagg_cli.evals.client import Deadlines
from disagg_cli.evals.run import run_gsm8k
from disagg_cli.evals.settings import EvalSettings
from disagg_cli.evals.states import State
from disagg_cli.evals.statistics import Outcome


def test_all_right(tmp_path):
    report = run(server := MockServer(GOLDS), tmp_path)
    assert (report.counts[State.CORRECT], report.planned, report.accuracy) == (40, 40, 1.0)
    assert (report.verdict.outcome, report.exit_code, report.error()) == (Outcome.NO_BASELINE, 0, None)
    assert report.identity.model == server.seen[0]["model"] == "mock-model"


def test_what_is_asked(tmp_path):
    run(server := MockServer(GOLDS), tmp_path, questions=1, max_tokens=99)
    (body,) = server.seen
    assert body["prompt"].count("Question: ") == 9
    assert (body["max_tokens"], body["temperature"], body["stop"]) == (99, 0, ["\nQuestion:"])
    assert body["stream_options"] == {"include_usage": True}
    assert body["rid"].startswith("disagg-")


FAILURES = {
    "hang": (hangs, "timeout", "first_token"),
    "stall": (stalls, "timeout", "idle"),
    "drip": (drips, "timeout", "request"),
    "error line": (errors_in_stream, "error", "in_stream"),
    "cut": (cuts, "error", "cut"),
    "no [DONE]": (forgets_done, "error", "cut"),
    "garbage": (talks_garbage, "error", "protocol"),
    "abort": (says("", finish="abort"), "error", "abort"),
    "one prompt token": (says("#### 1", prompt_tokens=1), "error", "prompt_tokens"),
    "another prompt": (says("#### 1", prompt_tokens=30), "error", "prompt_tokens"),
    "503": (unavailable, "error", "http"),
    "empty": (says(""), "invalid", None),
    "no number": (says(" I do not know."), "invalid", None),
    "wrong": (says(" #### 123456"), "wrong", None),
    "length": (says(" and so on", finish="length"), "truncated", None),
}


def test_every_failure_has_its_own_state(tmp_path):
    behave = {question: how for question, (how, _, _) in zip(QUESTIONS, FAILURES.values(), strict=False)}
    started = time.monotonic()
    report = run(MockServer(GOLDS, behave), tmp_path, concurrency=40, deadlines=QUICK)
    assert time.monotonic() - started < 10
    states = {
        entry["id"]: (entry["state"], entry["failure"] and entry["failure"]["kind"]) for entry in samples(tmp_path)
    }
    assert states["test-9"] == ("wrong", None)  # only the whole run shows that 30 tokens are another prompt
    for row, (name, (_, state, kind)) in enumerate(FAILURES.items()):
        assert name == "another prompt" or states[f"test-{row}"] == (state, kind), name
    assert {state.value: count for state, count in report.counts.items()} == {
        "correct": 25, "wrong": 1, "invalid": 2, "truncated": 1, "error": 8, "timeout": 3, "skipped": 0,
    }  # fmt: skip
    assert (report.verdict.outcome, report.exit_code) == (Outcome.NOT_JUDGED, 7)


def test_failures_are_grouped_and_name_room_and_request(tmp_path):
    report = run(MockServer(GOLDS, {QUESTIONS[0]: errors_in_stream, QUESTIONS[1]: errors_in_stream}), tmp_path)
    (entry,) = report.failures
    assert (entry.count, entry.status, entry.rooms, len(entry.rids)) == (2, 500, ("77",), 2)


def test_hung_requests_are_listed(tmp_path):
    report = run(MockServer(GOLDS, {QUESTIONS[3]: stalls}), tmp_path, deadlines=QUICK)
    (hung,) = report.hung
    assert (hung["id"], hung["deadline"]) == ("test-3", "idle")
    assert hung["bytes_received"] > 0
    assert hung["age_s"] >= 2


def test_the_run_has_a_deadline(tmp_path):
    started = time.monotonic()
    deadlines = Deadlines(run_s=0.5)
    report = run(MockServer(GOLDS, default=hangs), tmp_path, deadlines=deadlines, concurrency=4)
    assert time.monotonic() - started < 10
    assert (report.counts[State.TIMEOUT], report.counts[State.SKIPPED]) == (4, 36)
    assert report.facts.stopped == "the run's deadline passed"


def test_a_dead_deployment_ends_the_run(tmp_path):
    report = run(MockServer(GOLDS, default=unavailable), tmp_path, concurrency=2)
    assert 8 <= report.counts[State.ERROR] <= 10
    assert "the last 8 requests all failed, mostly: HTTP 503" in report.verdict.reason
    assert report.exit_code == 7


def test_a_catastrophe_stops_early(tmp_path):
    report = run(MockServer(GOLDS, default=says("#### 7")), tmp_path, concurrency=1, baseline=0.961)
    assert (report.verdict.outcome, report.exit_code) == (Outcome.FAIL, 6)
    assert report.counts[State.WRONG] < 10
    assert "stopped early" in report.verdict.reason


def test_synthetic_weights_are_not_judged_by_their_score(tmp_path):
    report = run(MockServer(GOLDS, default=says("xyz")), tmp_path, baseline=0.961, synthetic_weights=True)
    assert (report.verdict.outcome, report.exit_code, report.counts[State.INVALID]) == (Outcome.NO_BASELINE, 0, 40)
    assert any("synthetic" in note for note in report.facts.notes)


def test_as_many_in_flight_as_asked(tmp_path):
    server = MockServer(GOLDS, default=says("#### 1", pause=0.05))
    run(server, tmp_path, concurrency=40)
    assert server.most_in_flight == 40


def test_never_more_in_flight_than_asked(tmp_path):
    server = MockServer(GOLDS, default=says("#### 1", pause=0.01))
    run(server, tmp_path, concurrency=3)
    assert server.most_in_flight == 3


def test_latency_of_a_slow_stream(tmp_path):
    report = run(MockServer(GOLDS, default=says("#### 12345678", pause=0.05)), tmp_path, questions=5)
    assert report.latency["second_token_gap"].p50 == pytest.approx(0.05, rel=2)
    assert report.latency["end_to_end"].p50 > 0.15
    assert report.completion_tokens == 5 * 4


def test_without_streaming(tmp_path):
    async def whole(_request, body, right):
        from aiohttp import web

        choice = {"text": f" {right}", "finish_reason": "stop"}
        return web.json_response({"choices": [choice], "usage": {"prompt_tokens": 900, "completion_tokens": 4}})

    report = run(server := MockServer(GOLDS, default=whole), tmp_path, stream=False)
    assert (report.accuracy, report.latency["first_token"]) == (1.0, None)
    assert "stream" not in server.seen[0]


def test_summary_names_everything_that_matters(tmp_path):
    report = run(MockServer(GOLDS), tmp_path, questions=10, baseline=0.9)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary == json.loads(json.dumps(report.document()))
    assert (summary["schema"], summary["dataset"], summary["prompt"]) == (
        "disagg.eval/1",
        "mini",
        "disagg-completions-8shot/1",
    )
    assert len(summary["ids"]) == summary["planned"] == 10
    assert summary["counts"] == {"correct": 10} | dict.fromkeys(summary["counts"], 0) | {"correct": 10}


def test_chat(tmp_path):
    report = run(server := MockServer(GOLDS, default=chats), tmp_path, endpoint="chat", thinking=False)
    assert (report.accuracy, report.identity.prompt) == (1.0, "disagg-no-thinking-chat-0shot/1")
    body = server.seen[0]
    assert body["messages"][0]["content"].endswith("#### number'.")
    assert body["chat_template_kwargs"] == {"enable_thinking": False, "thinking": False}
    assert "stop" not in body
    entry = samples(tmp_path)[0]
    assert (entry["reasoning_characters"], entry["matched_stop"], entry["prompt_tokens"]) == (8, 151645, 40)


def test_generate(tmp_path):
    report = run(server := MockServer(GOLDS, default=generates), tmp_path, endpoint="generate", max_tokens=77)
    assert (report.accuracy, report.retractions, report.cached_tokens) == (1.0, 40, 40 * 800)
    assert {share.answered > 0 for share in report.by_rank.values()} == {True}
    assert server.seen[0]["sampling_params"]["max_new_tokens"] == 77
    assert len(samples(tmp_path)[0]["pieces"]) == 2


def test_no_two_prompts_begin_alike(tmp_path):
    run(server := MockServer(GOLDS), tmp_path, prefix_mode="mixed")
    heads = {body["prompt"][:300] for body in server.seen}
    assert len(heads) > 7
    assert len({body["prompt"].count("Question: ") for body in server.seen}) > 3


def test_workers_tell_versions_and_counters(tmp_path):
    def metrics(server):
        return (
            f'sglang:num_requests_total{{tp="0"}} {len(server.seen)}.0\n'
            "sglang:num_decode_transfer_queue_reqs 0.0\nother_total 5\n"
        )

    async def both():
        async with serving(MockServer(GOLDS, metrics=metrics)) as server:
            settings = EvalSettings(dataset="mini", workers=(server.url,))
            return await run_gsm8k(settings, server.url, tmp_path)

    report = asyncio.run(both())
    (worker,) = report.facts.counters
    assert (worker.deltas, worker.leaked) == ({"sglang:num_requests_total": 40.0}, {})
    assert report.facts.versions[worker.worker]["version"] == "0.5.23"


def test_a_queue_that_stays_full_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr("disagg_cli.evals.served.GRACE_S", 0.1)
    gauge = "sglang:num_decode_prealloc_queue_reqs 2.0\n"

    async def both():
        async with serving(MockServer(GOLDS, metrics=lambda _server: gauge)) as server:
            settings = EvalSettings(dataset="mini", workers=(server.url,))
            return await run_gsm8k(settings, server.url, tmp_path)

    assert "still has 2 requests in num_decode_prealloc_queue_reqs" in asyncio.run(both()).facts.notes[-1]


def test_a_baseline_made_another_way_is_refused(tmp_path):
    record = Baseline(source="--baseline", preset="sglang-run-eval", n=1311)
    with pytest.raises(
        UsageError, match="preset: sglang-run-eval then, disagg now; number of questions: 1311 then, 40"
    ):
        run(MockServer(GOLDS), tmp_path, baseline=0.961, baseline_record=record)
    report = run(MockServer(GOLDS), tmp_path, baseline=0.9, margin=0.1, baseline_record=record, force=True)
    assert report.verdict.outcome is Outcome.PASS
    assert "by force" in report.facts.notes[0]


def test_an_earlier_run_is_a_baseline(tmp_path):
    run(MockServer(GOLDS, {QUESTIONS[0]: says("no")}), tmp_path / "first")
    accuracy, record = read_baseline(str(tmp_path / "first"))
    assert accuracy == 39 / 40
    gate = {"baseline": accuracy, "margin": 0.1, "baseline_record": record}
    assert run(MockServer(GOLDS), tmp_path / "second", **gate).verdict.outcome is Outcome.PASS
    with pytest.raises(UsageError, match="prompt: disagg-completions-8shot/1 then, disagg-completions-7shot/1 now"):
        run(MockServer(GOLDS), tmp_path / "third", shots=7, **gate)


def test_files_for_people_and_ci(tmp_path):
    behave = {QUESTIONS[0]: unavailable, QUESTIONS[1]: says("#### 7 | 8")}
    run(MockServer(GOLDS, behave), tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert text.startswith("# GSM8K: NOT JUDGED\n")
    assert "| correct | 38 |" in text
    assert "## wrong: test-1\n\nGold 150, read 7." in text
    suite = ET.fromstring((tmp_path / "junit.xml").read_text())
    assert (suite.get("tests"), suite.get("failures")) == ("2", "2")
    assert "HTTP 503" in suite[1][0].get("message")


def test_the_api_key_is_sent_and_written_nowhere(tmp_path, monkeypatch):
    monkeypatch.setenv("DISAGG_API_KEY", "s3cret")
    keys = []

    async def guarded(request, body, right):
        keys.append(request.headers.get("Authorization"))
        return await says(f" {right}")(request, body, right)

    run(MockServer(GOLDS, default=guarded), tmp_path, questions=1)
    assert keys == ["Bearer s3cret"]
    assert not any("s3cret" in path.read_text() for path in tmp_path.iterdir())


def test_progress(tmp_path):
    seen = []
    run(MockServer(GOLDS), tmp_path, progress=lambda now: seen.append((now.done, now.planned)))
    assert seen == [(done, 40) for done in range(1, 41)]


def test_nobody_listens(tmp_path):
    settings = EvalSettings(dataset="mini")
    with pytest.raises(EvalUndecided, match="nothing answers"):
        asyncio.run(run_gsm8k(settings, "http://127.0.0.1:9", tmp_path))


def test_not_a_url(tmp_path):
    with pytest.raises(UsageError, match="not a URL"):
        asyncio.run(run_gsm8k(EvalSettings(dataset="mini"), "localhost:8000", tmp_path))


def test_mini_has_forty_questions(tmp_path):
    report = run(MockServer(GOLDS), tmp_path, questions=200)
    assert (report.planned, report.facts.notes[0]) == (40, "200 questions were asked for; mini has 40")


@pytest.mark.parametrize(
    "wrong",
    [
        {"baseline": 96.1},
        {"concurrency": 0},
        {"shots": -1},
        {"margin": 0.0},
        {"floor": 2.0},
        {"seed": -1},
        {"seed": 2**31},
        {"alpha": float("nan")},
    ],
)
def test_settings_refuse_nonsense(wrong):
    with pytest.raises(UsageError, match=next(iter(wrong))):
        EvalSettings(**wrong)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("request_s", "--timeout"),
        ("first_token_s", "--first-token-timeout"),
        ("idle_s", "--idle-timeout"),
        ("run_s", "--run-timeout"),
    ],
)
def test_no_wait_is_without_an_end(name, option, seconds):
    with pytest.raises(UsageError, match=f"^{option} is"):
        EvalSettings(deadlines=Deadlines(**{name: seconds}))


def test_a_baseline_that_missed_nothing(tmp_path):
    assert run(MockServer(GOLDS), tmp_path / "a", baseline=1.0, margin=0.1).verdict.outcome is Outcome.PASS
    report = run(MockServer(GOLDS, default=says("#### 7")), tmp_path / "b", baseline=1.0, concurrency=1)
    assert (report.verdict.outcome, report.counts[State.WRONG]) == (Outcome.FAIL, 3)


def test_a_floor_needs_no_baseline(tmp_path):
    report = run(MockServer(GOLDS, {QUESTIONS[0]: says("#### 7")}), tmp_path, floor=0.99)
    assert report.verdict.outcome is Outcome.FAIL
    assert report.verdict.reason == "accuracy 0.9750 is below the floor 0.9900"
    assert run(MockServer(GOLDS), tmp_path, floor=0.99).verdict.outcome is Outcome.NO_BASELINE


def test_whole_answers_have_one_deadline(tmp_path):
    report = run(MockServer(GOLDS, default=hangs), tmp_path, deadlines=QUICK, stream=False, questions=2)
    assert [(entry.kind, entry.message) for entry in report.failures] == [("request", "not finished within 4 s")]


def test_workers_without_metrics_are_named(tmp_path):
    report = run(MockServer(GOLDS), tmp_path, questions=3, workers=("http://127.0.0.1:9",))
    assert "http://127.0.0.1:9 tells no metrics" in report.facts.notes[-1]
    with pytest.raises(UsageError, match="not a URL") as caught:
        run(MockServer(GOLDS), tmp_path, workers=("decode-0",))
    assert caught.value.fix.startswith("--worker ")
