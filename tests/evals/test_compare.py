"""Two runs, answer by answer."""

import asyncio
import json

import pytest
from mock_server import MockServer, hangs, says, serving

from disagg_cli.errors import UsageError
from disagg_cli.evals.client import Deadlines
from disagg_cli.evals.compare import Limits, Side, compare
from disagg_cli.evals.data import load
from disagg_cli.evals.paired import run_pair
from disagg_cli.evals.run import run_gsm8k
from disagg_cli.evals.settings import EvalSettings
from disagg_cli.evals.statistics import Outcome

GOLDS = {question.question: question.answer for question in load("mini").questions}
QUESTIONS = list(GOLDS)


def side(folder, behave=None, **settings):
    """A run against a server that answers some questions another way."""

    async def both():
        async with serving(MockServer(GOLDS, behave or {})) as server:
            chosen = EvalSettings(**{"dataset": "mini", **settings})
            await run_gsm8k(chosen, server.url, folder)

    asyncio.run(both())
    return Side.read(folder)


def test_equal_runs(tmp_path):
    result = compare(side(tmp_path / "a"), side(tmp_path / "b"), Limits(margin=0.1))
    assert (result.pairs, result.identical, result.lost, result.p_value, result.outcome) == (
        40,
        40,
        0,
        1.0,
        Outcome.PASS,
    )


def test_lost_answers(tmp_path):
    after = side(tmp_path / "b", dict.fromkeys(QUESTIONS[:9], says("#### 123456")))
    result = compare(side(tmp_path / "a"), after, Limits())
    assert (result.lost, result.gained, result.outcome, result.exit_code) == (9, 0, Outcome.FAIL, 6)
    assert result.p_value == pytest.approx(1 / 2**9)
    assert {found.flip for found in result.differences} == {"lost"}


def test_five_lost_are_too_few_to_be_sure(tmp_path):
    after = side(tmp_path / "b", dict.fromkeys(QUESTIONS[:5], says("#### 123456")))
    result = compare(side(tmp_path / "a"), after, Limits())
    assert result.outcome is Outcome.INCONCLUSIVE
    assert result.reason.endswith("54 pairs like these would decide")  # 7 lost, none gained: p = 1/128


@pytest.mark.parametrize("share", [0.0, 1.5, 7, float("nan")])
def test_a_share_that_is_none(share):
    with pytest.raises(UsageError, match="min-identical"):
        Limits(identical=share)


def test_where_two_answers_part(tmp_path):
    before = side(tmp_path / "a", {QUESTIONS[0]: says(" 1 + 1 = 2\n#### 79")})
    after = side(tmp_path / "b", {QUESTIONS[0]: says(" 1 + 1 = 3\n#### 79")})
    (found,) = compare(before, after, Limits(margin=0.1)).differences
    assert (found.id, found.flip, found.character, found.token) == ("test-0", None, 9, 2)
    assert found.around == (" 1 + 1 = 2\n#### 79", " 1 + 1 = 3\n#### 79")


def test_an_error_is_no_difference(tmp_path):
    after = side(tmp_path / "b", {QUESTIONS[0]: hangs}, deadlines=Deadlines(first_token_s=2))
    result = compare(side(tmp_path / "a"), after, Limits())
    assert (result.pairs, result.identical, result.lost, result.failed_after) == (39, 39, 0, 1)
    assert (result.outcome, result.exit_code) == (Outcome.NOT_JUDGED, 7)
    assert result.reason.endswith(
        "0 in the first run, 1 in the second; mostly timeout (first_token): no text within 2 s"
    )
    assert compare(side(tmp_path / "a"), after, Limits(failure_budget=1, margin=0.1)).outcome is Outcome.PASS


def test_synthetic_weights_are_judged_by_identity(tmp_path):
    before = side(tmp_path / "a", synthetic_weights=True)
    two = side(tmp_path / "b", dict.fromkeys(QUESTIONS[:2], says("x")), synthetic_weights=True)
    three = side(tmp_path / "c", dict.fromkeys(QUESTIONS[:3], says("x")), synthetic_weights=True)
    assert compare(before, two, Limits()).outcome is Outcome.PASS
    assert "92.5% of the answers are identical; at least 95.0% must be" in compare(before, three, Limits()).reason


def test_prompts_counted_differently(tmp_path):
    after = side(tmp_path / "b", {QUESTIONS[0]: says(f" {GOLDS[QUESTIONS[0]]}", prompt_tokens=1100)})
    assert compare(side(tmp_path / "a"), after, Limits()).prompt_tokens_differ == 1


def test_runs_that_asked_otherwise_are_refused(tmp_path):
    before, after = side(tmp_path / "a"), side(tmp_path / "b", shots=4, questions=10)
    with pytest.raises(UsageError, match=r"prompt: .*8shot.*4shot.*; questions: 40 and 10, 10 in both"):
        compare(before, after, Limits())
    assert compare(before, after, Limits(), force=True).pairs == 10


def test_a_run_and_a_server(tmp_path):
    side(tmp_path / "a", questions=7, shots=3)
    server = MockServer(GOLDS)

    async def both():
        async with serving(server):
            return await run_pair(EvalSettings(), str(tmp_path / "a"), server.url, tmp_path / "out", Limits(margin=0.5))

    result = asyncio.run(both())
    assert (result.pairs, result.identical, len(server.seen)) == (7, 7, 7)
    written = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert (written["schema"], written["identical_share"]) == ("disagg.eval-compare/1", 1.0)


def test_two_servers_are_asked_the_same(tmp_path):
    first, second = MockServer(GOLDS), MockServer(GOLDS)

    async def both():
        async with serving(first), serving(second):
            settings = EvalSettings(dataset="mini", questions=5)
            return await run_pair(settings, first.url, second.url, tmp_path, Limits(margin=0.9))

    assert asyncio.run(both()).pairs == 5
    assert {body["prompt"] for body in first.seen} == {body["prompt"] for body in second.seen}


def test_no_run_there(tmp_path):
    with pytest.raises(UsageError, match="no eval run"):
        asyncio.run(run_pair(EvalSettings(), str(tmp_path), "http://127.0.0.1:9", tmp_path, Limits()))
