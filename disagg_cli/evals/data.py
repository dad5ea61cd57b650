"""Where questions come from, and the proof that they are the right ones.

Two datasets: `gsm8k`, the 1,319 test and 7,473 train questions of OpenAI's grade-school-math (MIT), and `mini`, 48 word
problems written for this project. Every file is known by its sha256. GSM8K is read from a file or folder that the user
names, else from the cache, else fetched once from the original repository, or from a mirror of its data folder at
$DISAGG_GSM8K_URL; a hub is never asked.
"""

import codecs
import hashlib
import json
import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Literal

from disagg_cli.errors import UsageError
from disagg_cli.evals.answers import gold_answer

DatasetName = Literal["mini", "gsm8k"]
Split = Literal["train", "test"]

# openai/grade-school-math at its last commit (2021-11-19); the data have not changed since 2021-10-28.
COMMIT = "3101c7d5072418e28b9008a6636bde82a006892c"
BASE_URL = f"https://raw.githubusercontent.com/openai/grade-school-math/{COMMIT}/grade_school_math/data"
SHA256 = {
    "test": "3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14",
    "train": "17f347dc51477c50d4efb83959dbb7c56297aba886e5544ee2aaed3024813465",
}
MINI_SHOTS = 8
_FETCH_TIMEOUT_S = 30
_LARGEST_FILE = 16 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """One problem with its worked answer. `id` is the split and the row, from 0: `test-138`."""

    id: str
    question: str
    answer: str
    gold: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Dataset:
    """One split of a dataset. `custom`: not the published file, by its sha256, so that scores compare with nothing."""

    name: str
    split: Split
    source: str
    sha256: str
    custom: bool
    questions: tuple[Question, ...]


def load(dataset: DatasetName, data: Path | None = None, split: Split = "test") -> Dataset:
    """One split, from `data` (a file, or a folder with test.jsonl and train.jsonl), the cache or the repository.

    UsageError where it cannot be had or is not in GSM8K's form; the message says which file to put where.
    """
    if data is not None:
        return _from_user(data, split)
    return _mini(split) if dataset == "mini" else _gsm8k(split)


def load_shots(dataset: DatasetName, count: int, data: Path | None = None) -> tuple[Question, ...]:
    """The first `count` train questions, which serve as worked examples.

    The first eight of GSM8K come with the package, so a single test file is enough for the usual 8 shots.
    """
    if data is not None and data.is_dir() and (data / "train.jsonl").exists():
        train = _from_user(data, "train").questions
    elif dataset == "mini" and data is None:
        train = _mini("train").questions
    elif count <= len(packaged := _parse(_packaged("gsm8k_shots.jsonl"), "train", "gsm8k_shots.jsonl")):
        train = packaged
    else:
        train = _gsm8k("train").questions
    if count > len(train):
        raise UsageError(
            f"{count} shots asked, but the train split has {len(train)} questions", fix=f"--shots {len(train)}"
        )
    return train[:count]


def sample(questions: Sequence[Question], count: int | None, seed: int) -> tuple[Question, ...]:
    """`count` questions chosen by a seeded draw, in dataset order; all of them for None.

    A draw, not the first rows: GSM8K's first 200 are easier than the rest by some points (sglang issue 31702).
    """
    if count is None or count == len(questions):
        return tuple(questions)
    if not 1 <= count <= len(questions):
        raise UsageError(
            f"{count} questions asked, but there are {len(questions)}", fix=f"--questions {len(questions)} or fewer"
        )
    rows = sorted(random.Random(seed).sample(range(len(questions)), count))
    return tuple(questions[row] for row in rows)


def cache_folder() -> Path:
    """Where GSM8K is kept: in the cache of all that can be made, or fetched, again (`runtime.rundir.cache`)."""
    from disagg_cli.runtime.rundir import cache  # here: 30 ms that a run with --data or --dataset mini need not pay

    return cache() / "gsm8k"


def _mini(split: Split) -> Dataset:
    raw = _packaged("mini.jsonl")
    rows = raw.splitlines(keepends=True)
    part = rows[:MINI_SHOTS] if split == "train" else rows[MINI_SHOTS:]
    questions = _parse(b"".join(part), split, "mini.jsonl")
    return Dataset(name="mini", split=split, source="built in", sha256=_digest(raw), custom=False, questions=questions)


def _from_user(data: Path, split: Split) -> Dataset:
    path = data / f"{split}.jsonl" if data.is_dir() else data
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"cannot read the questions: {error.strerror}", where=str(path), fix="--data FILE or FOLDER"
        ) from None
    custom = _digest(raw) != SHA256[split]
    name = "custom data" if custom else "gsm8k"
    questions = _parse(raw, split, str(path))
    return Dataset(name=name, split=split, source=str(path), sha256=_digest(raw), custom=custom, questions=questions)


def _gsm8k(split: Split) -> Dataset:
    path = cache_folder() / f"{split}.jsonl"
    try:
        raw = path.read_bytes()
    except OSError:
        raw = b""
    if _digest(raw) != SHA256[split]:
        raw = _fetch(split, path, damaged=bool(raw))
    questions = _parse(raw, split, str(path))
    return Dataset(name="gsm8k", split=split, source=str(path), sha256=SHA256[split], custom=False, questions=questions)


def _fetch(split: Split, path: Path, *, damaged: bool) -> bytes:
    """Download one split, check it, and keep it. What is not byte for byte the published file is never kept."""
    url = f"{os.environ.get('DISAGG_GSM8K_URL', BASE_URL)}/{split}.jsonl"
    try:
        raw = _download(url)
    except (OSError, ValueError) as error:
        cached = f", and {path} is damaged (its sha256 is another)" if damaged else ""
        raise UsageError(f"cannot download GSM8K: {error}{cached}", where=url, fix=_by_hand(split, path)) from None
    if _digest(raw) != SHA256[split]:
        raise UsageError(
            f"the download is not GSM8K's {split} split: sha256 {_digest(raw)}, expected {SHA256[split]}",
            where=url,
            fix=_by_hand(split, path),
        )
    _keep(raw, path)
    return raw


def _download(url: str) -> bytes:
    from urllib.request import urlopen  # here: urllib.request brings http.client and ssl, and most runs have the cache

    with urlopen(url, timeout=_FETCH_TIMEOUT_S) as response:
        raw: bytes = response.read(_LARGEST_FILE)
    return raw


def _by_hand(split: Split, path: Path) -> str:
    return (
        f"put {split}.jsonl of github.com/openai/grade-school-math (grade_school_math/data/) at {path}, "
        "name it with --data, or use --dataset mini, which is built in"
    )


def _keep(raw: bytes, path: Path) -> None:
    """Write under another name first: a reader never sees half a file. A cache that cannot be written is no error."""
    partial = path.with_suffix(f".{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(raw)
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)


def _packaged(name: str) -> bytes:
    return files("disagg_cli.evals").joinpath(name).read_bytes()


def _parse(raw: bytes, split: Split, source: str) -> tuple[Question, ...]:
    """All rows, or a UsageError that names the first bad line. Blank lines count as lines, and are left out."""
    rows = []
    for line, text in enumerate(raw.removeprefix(codecs.BOM_UTF8).splitlines(), start=1):
        if not text.strip():
            continue
        try:
            rows.append(_question(json.loads(text), f"{split}-{line - 1}"))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise UsageError(
                f"not a GSM8K row: {error}",
                where=f"{source}:{line}",
                fix='each line is {"question": "...", "answer": "worked steps\\n#### 18"}',
            ) from None
    if not rows:
        raise UsageError("no questions", where=source, fix="give a file with at least one row")
    return tuple(rows)


def _question(row: Mapping[str, object], name: str) -> Question:
    question, answer = row["question"], row["answer"]
    if not (isinstance(question, str) and isinstance(answer, str) and question.strip()):
        raise TypeError("question and answer must be texts, and the question not empty")
    return Question(id=name, question=question, answer=answer, gold=gold_answer(answer))


def _digest(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()
