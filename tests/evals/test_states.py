"""The state of an answer, and flags that are no states."""

from dataclasses import replace

import pytest

from disagg_cli.evals.states import Sample, State, repeats, score, with_strange_prompts


@pytest.mark.parametrize(
    ("completion", "finish", "state"),
    [
        ("#### 18", "stop", State.CORRECT),
        ("#### 19", "stop", State.WRONG),
        ("no idea", "stop", State.INVALID),
        ("", "stop", State.INVALID),
        (None, None, State.INVALID),
        ("#### 18 and on", "length", State.TRUNCATED),
        ("<think>18", "stop", State.TRUNCATED),
        ("18 eggs <think>or", "stop", State.CORRECT),
    ],
)
def test_state(completion, finish, state):
    assert score(completion, "#### 18", finish).state is state


def test_a_truncated_answer_may_be_right():
    assert score("#### 18", "#### 18", "length").correct
    assert not score("#### 1", "#### 18", "length").correct


@pytest.mark.parametrize("text", ["18 " * 12, "so so " * 10, "\n".join(["the same line again"] * 9), "!" * 30])
def test_repetition(text):
    assert repeats(text)


@pytest.mark.parametrize("text", ["", "18", "1000000000", "a b a b a b", "She has 3 * 4 = 12 eggs.\n#### 12"])
def test_no_repetition(text):
    assert not repeats(text)


def sample(prompt_tokens: int | None, state: State = State.CORRECT, characters: int = 4000) -> Sample:
    return Sample(
        id="test-0", order=0, rid="r", state=state, gold=18, answer="18", strict="18", flexible="18", correct=True,
        correct_strict=True, correct_flexible=True, repetition=False, completion="#### 18", pieces=[4, 3],
        reasoning_characters=0, server={}, finish_reason="stop", matched_stop=None,
        failure=None, prompt_tokens=prompt_tokens, prompt_characters=characters, completion_tokens=3,
        cached_tokens=None, bytes_received=10, started_at=1.0, first_token_s=0.1, second_token_gap_s=0.1, tpot_s=0.1,
        end_to_end_s=1.0, gaps={5: 2},
    )  # fmt: skip


def test_a_sample_survives_json():
    assert Sample.from_dict(sample(1000).to_dict()) == sample(1000)


@pytest.mark.parametrize(
    "wrong", [{"order": "1"}, {"completion": None}, {"state": "odd"}, {"correct": 1.5}, {"gaps": []}, {"pieces": {}}]
)
def test_what_is_no_sample(wrong):
    with pytest.raises((TypeError, ValueError)):
        Sample.from_dict(sample(1000).to_dict() | wrong)


def test_a_prompt_of_impossible_length_is_an_error():
    *_, strange = with_strange_prompts([sample(1000), sample(1010), sample(990), sample(17)])
    assert (strange.state, strange.failure.kind, strange.correct) == (State.ERROR, "prompt_tokens", False)


def test_short_questions_are_not_strange():
    """Zero-shot prompts differ by a factor of seven in length, and in tokens."""
    ordinary = [
        sample(30, characters=120),
        sample(60, characters=240),
        sample(60, characters=240),
        sample(200, characters=800),
    ]
    assert with_strange_prompts(ordinary) == ordinary
    same = [replace(entry, prompt_tokens=900) for entry in ordinary]
    assert with_strange_prompts(same) == same
