"""Stored completions, scored again."""

import json
from pathlib import Path

import pytest

from disagg_cli.errors import UsageError
from disagg_cli.evals.rescore import rescore
from disagg_cli.evals.scorers import SCORERS

LABELLED = Path(__file__).parents[3] / "shared" / "data" / "gsm8k_answers.jsonl"


def write(path, *rows):
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return path


def test_one_row(tmp_path):
    document = rescore(write(tmp_path / "c.jsonl", {"completion": "#### 1,080.", "gold": "1,080"})).document()
    assert document["samples"] == [
        {
            "strict": "1080",
            "flexible": "1080",
            "answer": "1080",
            "correct": True,
            "correct_strict": True,
            "state": "correct",
        }
    ]
    assert (document["schema"], document["accuracy"]) == ("disagg.eval-score/1", 1.0)


@pytest.mark.skipif(not LABELLED.exists(), reason=f"{LABELLED} is not here")
def test_labelled_completions():
    rows = [json.loads(line) for line in LABELLED.read_text().splitlines()]
    samples = rescore(LABELLED).document()["samples"]
    names = ("strict", "flexible", "correct")
    assert [[sample[name] for name in names] for sample in samples] == [[row[name] for name in names] for row in rows]


def test_states(tmp_path):
    rows = [
        {"completion": "9", "gold": 9, "finish_reason": "length"},
        {"completion": None, "gold": "-3"},
        {"completion": "half", "gold": 1, "state": "timeout"},
        {"completion": "#### 0.5", "gold": 0.5},
    ]
    document = rescore(write(tmp_path / "c.jsonl", *rows)).document()
    assert [sample["state"] for sample in document["samples"]] == ["truncated", "invalid", "timeout", "correct"]
    assert (document["answered"], document["accuracy"]) == (3, 2 / 3)


def test_another_scorer(tmp_path):
    path = write(tmp_path / "c.jsonl", {"completion": "#### 3.18", "gold": "18"})
    assert rescore(path, "last-digits").document()["accuracy"] == 1.0


@pytest.mark.parametrize("scorer", list(SCORERS))
def test_gold_answers_with_decimals(tmp_path, scorer):
    rows = [{"completion": "#### 0.5", "gold": 0.5}, {"completion": "", "gold": "1.25"}]
    document = rescore(write(tmp_path / "c.jsonl", *rows), scorer).document()
    assert document["planned"] == 2


def test_how_editors_leave_a_file(tmp_path):
    path = tmp_path / "c.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"completion": "#### 1", "gold": 1}\r\n\r\n{"completion": "2", "gold": 2}')
    assert rescore(path).document()["accuracy"] == 1.0


def test_of_a_resumed_run_the_later_line_counts(tmp_path):
    rows = [{"id": "a", "completion": "", "gold": 1, "state": "skipped"}, {"id": "a", "completion": "1", "gold": 1}]
    write(tmp_path / "samples.jsonl", *rows)
    assert rescore(tmp_path).document()["counts"]["correct"] == rescore(tmp_path).document()["planned"] == 1
    assert rescore(tmp_path / "samples.jsonl").document()["planned"] == 2  # a file: row by row


def test_no_completions(tmp_path):
    with pytest.raises(UsageError, match="no completions"):
        rescore(write(tmp_path / "c.jsonl"))


@pytest.mark.parametrize(
    "row", ["{", "[]", {"completion": "x"}, {"completion": 3, "gold": 3}, {"completion": "", "gold": "x"}]
)
def test_bad_rows_have_an_address(tmp_path, row):
    path = write(tmp_path / "c.jsonl", {"completion": "", "gold": 1}, row)
    with pytest.raises(UsageError, match="not a completion") as caught:
        rescore(path)
    assert caught.value.where == f"{path}:2"
