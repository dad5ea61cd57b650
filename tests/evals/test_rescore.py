"""Stored completions, scored again."""

import json
from pathlib import Path

import pytest

from disagg_cli.errors import UsageError
from disagg_cli.evals.rescore import rescore

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


@pytest.mark.parametrize(
    "row", ["{", "[]", {"completion": "x"}, {"completion": 3, "gold": 3}, {"completion": "", "gold": "x"}]
)
def test_bad_rows_have_an_address(tmp_path, row):
    path = write(tmp_path / "c.jsonl", {"completion": "", "gold": 1}, row)
    with pytest.raises(UsageError, match="not a completion") as caught:
        rescore(path)
    assert caught.value.where == f"{path}:2"
