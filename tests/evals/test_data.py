"""Where questions come from: built in, a file, a folder, the cache, the original repository. Always checked."""

import json
from pathlib import Path

import pytest

from disagg_cli.errors import UsageError
from disagg_cli.evals import data
from disagg_cli.evals.data import SHA256, load, load_shots, sample

GSM8K = Path(__file__).parents[3] / "shared" / "data" / "gsm8k"
needs_gsm8k = pytest.mark.skipif(not GSM8K.exists(), reason=f"{GSM8K} is not here")
ROW = {"question": "What is 1 + 1?", "answer": "1 + 1 = 2\n#### 2"}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DISAGG_HOME", str(tmp_path))
    monkeypatch.setenv("DISAGG_GSM8K_URL", (tmp_path / "origin").as_uri())
    return tmp_path / "cache" / "gsm8k"


def write(path: Path, *rows: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return path


def test_mini_needs_nothing():
    dataset = load("mini")
    assert (dataset.name, dataset.custom, dataset.questions[0].id) == ("mini", False, "test-0")


@needs_gsm8k
def test_a_file_is_known_by_its_sha256():
    dataset = load("gsm8k", GSM8K / "test.jsonl")
    assert (dataset.name, dataset.sha256, dataset.custom) == ("gsm8k", SHA256["test"], False)
    assert len(dataset.questions) == 1319


def test_another_file_is_custom_data(tmp_path):
    dataset = load("gsm8k", write(tmp_path / "own.jsonl", ROW))
    assert (dataset.name, dataset.custom, dataset.questions[0].gold) == ("custom data", True, 2)
    assert len(dataset.sha256) == 64


@needs_gsm8k
def test_a_folder_has_both_splits():
    assert load("gsm8k", GSM8K).questions[0].question.startswith("Janet")
    assert load_shots("gsm8k", 20, GSM8K)[19].id == "train-19"


@needs_gsm8k
def test_eight_shots_come_with_the_package():
    assert load_shots("gsm8k", 8, GSM8K / "test.jsonl") == load("gsm8k", GSM8K, "train").questions[:8]


def test_shots_of_mini_are_its_own():
    assert load_shots("mini", 8) == load("mini", split="train").questions
    with pytest.raises(UsageError, match="9 shots asked, but the train split has 8"):
        load_shots("mini", 9)


@needs_gsm8k
def test_downloaded_once_then_cached(tmp_path, cache):
    origin = tmp_path / "origin"
    origin.mkdir()
    (origin / "test.jsonl").write_bytes((GSM8K / "test.jsonl").read_bytes())
    assert load("gsm8k").source == str(cache / "test.jsonl")
    (origin / "test.jsonl").unlink()
    assert len(load("gsm8k").questions) == 1319
    assert [path.name for path in cache.iterdir()] == ["test.jsonl"]


def test_a_wrong_download_is_refused_and_not_kept(tmp_path, cache):
    write(tmp_path / "origin" / "test.jsonl", ROW)
    with pytest.raises(UsageError, match="not GSM8K's test split"):
        load("gsm8k")
    assert not cache.exists()


@needs_gsm8k
def test_a_damaged_cache_is_fetched_again(tmp_path, cache):
    write(cache / "test.jsonl", ROW)
    (tmp_path / "origin").mkdir()
    (tmp_path / "origin" / "test.jsonl").write_bytes((GSM8K / "test.jsonl").read_bytes())
    assert len(load("gsm8k").questions) == 1319


def test_offline_says_which_file_to_put_where(cache):
    with pytest.raises(UsageError, match="cannot download GSM8K") as caught:
        load("gsm8k")
    assert f"at {cache / 'test.jsonl'}" in caught.value.fix
    assert "--dataset mini" in caught.value.fix


@needs_gsm8k
def test_offline_a_damaged_cache_is_named(cache):
    write(cache / "test.jsonl", ROW)
    with pytest.raises(UsageError, match=r"test\.jsonl is damaged"):
        load("gsm8k")


@pytest.mark.parametrize(
    "change",
    [
        lambda raw: raw + b"\n",
        lambda raw: raw.replace(b"\n{", b"\n\n  \n{"),
        lambda raw: raw.replace(b"\n", b"\r\n"),
        lambda raw: b"\xef\xbb\xbf" + raw,
        lambda raw: raw.removesuffix(b"\n"),
    ],
    ids=["blank line at the end", "blank lines between", "CRLF", "BOM", "no newline at the end"],
)
def test_how_editors_leave_a_file(tmp_path, change):
    path = write(tmp_path / "own.jsonl", ROW, ROW | {"question": "Again?"})
    path.write_bytes(change(path.read_bytes()))
    assert [question.question for question in load("gsm8k", path).questions] == ["What is 1 + 1?", "Again?"]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ('{"question": 5, "answer": "#### 5"}', "must be texts"),
        ('{"question": " ", "answer": "#### 5"}', "not empty"),
        ("{", "not a GSM8K row"),
        ('{"question": "a"}', "'answer'"),
        ('{"question": "a", "answer": "no marker"}', "no integer"),
        ("[]", "not a GSM8K row"),
    ],
)
def test_bad_rows_have_an_address(tmp_path, line, what):
    path = write(tmp_path / "bad.jsonl", ROW, line)
    with pytest.raises(UsageError, match=what) as caught:
        load("gsm8k", path)
    assert caught.value.where == f"{path}:2"


def test_missing_and_empty_files(tmp_path):
    with pytest.raises(UsageError, match="cannot read the questions"):
        load("gsm8k", tmp_path / "none.jsonl")
    with pytest.raises(UsageError, match="no questions"):
        load("gsm8k", write(tmp_path / "empty.jsonl"))


def test_a_sample_is_drawn_by_seed_and_kept_in_order():
    questions = load("mini").questions
    chosen = sample(questions, 10, seed=42)
    assert chosen == sample(questions, 10, seed=42) != sample(questions, 10, seed=43)
    assert [questions.index(question) for question in chosen] == sorted(questions.index(q) for q in chosen)
    assert sample(questions, None, 1) == sample(questions, 40, 1) == questions
    with pytest.raises(UsageError, match="41 questions asked, but there are 40"):
        sample(questions, 41, 1)


def test_the_address_names_a_commit():
    assert data.COMMIT in data.BASE_URL
    assert len(data.COMMIT) == 40
