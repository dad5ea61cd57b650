"""Both answer rules, by small examples, hand-labelled completions, every gold answer, and fuzzing."""

import json
import time
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disagg_cli.evals.answers import gold_answer, is_right, read_answer
from disagg_cli.evals.numerals import canonical

SHARED = Path(__file__).parents[3] / "shared" / "data"
LABELLED = SHARED / "gsm8k_answers.jsonl"


def both(completion):
    answer = read_answer(completion)
    return canonical(answer.strict), canonical(answer.flexible)


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("so 9 * 2 = 18\n#### 18", ("18", "18")),
        ("#### 2,880,000", ("2880000", "2880000")),
        ("#### 18.", ("18", "18")),
        ("####18", (None, "18")),
        ("#### $18", (None, "18")),
        ("#### **-18**", (None, "-18")),
        ("#### \n#### 5", ("5", "5")),
        ("#### 18\nIn short \\boxed{20}", ("18", "18")),
        ("\\boxed{12} was a draft, \\boxed{18} is not", (None, "18")),
        ("\\boxed{x = 18 \\text{ m}^2}", (None, "18")),
        ("\\boxed{\\boxed{18}} of 20", (None, "18")),
        ("\\boxed{} has 7 in it", (None, "7")),
        ("\\boxed{18 of 20", (None, "20")),
        ("The answer is 18. I used 3 steps.", (None, "18")),
        ("The answer is not 12, of 15", (None, "15")),
        ("Answer: 16 - 3 - 4 = 9 (of 10)", (None, "9")),
        ("The answer is 18. Here x = 3", (None, "18")),
        ("The answer is 5. No, the answer is 6. That took 7 steps", (None, "6")),
        ("", (None, None)),
    ],
)
def test_rules(completion, expected):
    assert both(completion) == expected


def labelled():
    if not LABELLED.exists():
        return []
    return [json.loads(line) for line in LABELLED.read_text().splitlines()]


@pytest.mark.skipif(not LABELLED.exists(), reason=f"{LABELLED} is not here")
@pytest.mark.parametrize("row", labelled(), ids=lambda row: row["why"][:50])
def test_labelled_completions(row):
    answer, gold = read_answer(row["completion"]), Fraction(row["gold"])
    assert both(row["completion"]) == (row["strict"], row["flexible"])
    assert (is_right(answer.flexible, gold), is_right(answer.strict, gold)) == (row["correct"], row["correct_strict"])


@pytest.mark.parametrize(("split", "rows"), [("test", 1319), ("train", 7473)])
def test_every_gold_answer_is_read_back(split, rows):
    path = SHARED / "gsm8k" / f"{split}.jsonl"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    answers = [json.loads(line)["answer"] for line in path.read_text().splitlines()]
    golds = [gold_answer(answer) for answer in answers]
    read = [read_answer(answer) for answer in answers]
    assert len(golds) == rows
    assert [answer.strict for answer in read] == golds
    assert [answer.flexible for answer in read] == golds


@pytest.mark.parametrize("worked", ["18", "x\n#### ", "x\n#### 1.5", "x\n#### 1 2"])
def test_gold_answer_refuses(worked):
    with pytest.raises(ValueError, match="no integer"):
        gold_answer(worked)


def test_near_is_not_right():
    assert not is_right(Fraction(70001), 70000)
    assert not is_right(Fraction(1800), 18)
    assert not is_right(None, 18)
    assert is_right(Fraction(18), 18)


PIECES = ["####", " ", "\\boxed{", "}", "{", "=", "answer is ", "answer:", "-", "$", ",", ".", "/", "^", "e", "<think>",
          "</think>", "\n", "Question:", "<|x|>", "\\frac{1}{2}", "1", "23", "456", "*", "(", "\uff11"]  # fmt: skip


@settings(deadline=None)
@given(st.one_of(st.text(), st.lists(st.sampled_from(PIECES), max_size=60).map("".join)))
def test_no_text_raises(text):
    answer = read_answer(text)
    assert answer.flexible is None or isinstance(answer.flexible, Fraction)
    canonical(answer.flexible)


HOSTILE = ["1", "1,", "1,111", "#", "#### ", "\\boxed{", "\\boxed{1", "{", "answer is ", "answer:1=", "answer: 1",
           "answer", "-", "<think>", "</think>", "1\nQ:", "<|", "$", "1/", "1e", "\\frac{1}{", "^{1", "*", " ", "\n",
           "1\\,", "1{,}", ".", "</s>", "<|channel|>", "\\frac{1,111", "1/1,111", "answer**", "####-"]  # fmt: skip


@pytest.mark.parametrize("piece", HOSTILE)
def test_a_megabyte_of_it_takes_seconds_at_most(piece):
    text = piece * (1_000_000 // len(piece))
    started = time.process_time()
    read_answer(text + "}" * 100_000)
    assert time.process_time() - started < 20  # on a free core 0.1 to 0.5; what is not linear would take hours
