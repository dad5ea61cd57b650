"""Scoring stored completions again, whoever made them."""

import json
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from disagg_cli.errors import UsageError
from disagg_cli.evals.numerals import canonical, decimal
from disagg_cli.evals.states import ANSWERED, Scored, State, score_against

_FORM = 'each line is {"completion": "...", "gold": "18"}'


@dataclass(frozen=True, kw_only=True, slots=True)
class Rescored:
    """All rows of a file, in order."""

    source: str
    scorer: str
    rows: tuple[Scored, ...]

    def document(self) -> dict[str, Any]:
        """`disagg.eval-score/1`."""
        counts = Counter(row.state for row in self.rows)
        answered = sum(counts[state] for state in ANSWERED)
        return {
            "schema": "disagg.eval-score/1",
            "ok": True,
            "source": self.source,
            "scorer": f"{self.scorer}/1",
            "planned": len(self.rows),
            "answered": answered,
            "counts": {state.value: counts[state] for state in State},
            "accuracy": _share(sum(row.correct for row in self.rows), answered),
            "accuracy_planned": _share(sum(row.correct for row in self.rows), len(self.rows)),
            "accuracy_strict": _share(sum(row.correct_strict for row in self.rows), answered),
            "samples": [_sample(row) for row in self.rows],
        }


def rescore(path: Path, scorer: str = "flexible") -> Rescored:
    """Score a JSON-lines file whose rows have `completion` and `gold`, and may have `finish_reason` and `state`.

    A row that failed in transport (`state` error, timeout or skipped) keeps its state: there is nothing to score.
    UsageError names the first bad line.
    """
    file = path / "samples.jsonl" if path.is_dir() else path
    try:
        lines = file.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the completions: {error}", where=str(file)) from None
    numbered = [(line, f"{file}:{number}") for number, line in enumerate(lines, start=1) if line.strip()]
    if not numbered:
        raise UsageError("no completions", where=str(file), fix=_FORM)
    rows = [_row(line, scorer, where) for line, where in numbered]
    if path.is_dir():  # of two lines with one id the later counts: the first was left over from a run that was resumed
        rows = list(dict(rows).items())
    return Rescored(source=str(file), scorer=scorer, rows=tuple(row for _, row in rows))


def _row(line: str, scorer: str, where: str) -> tuple[str, Scored]:
    """A row's id, or its place where it has none, and what it is worth."""
    try:
        row = json.loads(line)
        name = str(row.get("id", where))
        completion, gold = _text(row["completion"]), _gold(row["gold"])
        finish = _text(row.get("finish_reason"))
        state = State(row["state"]) if "state" in row else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(f"not a completion: {error}", where=where, fix=_FORM) from None
    if state is not None and state not in ANSWERED:
        return name, Scored(state=state)
    return name, score_against(completion, gold, f"#### {canonical(gold)}", finish, scorer)


def _text(given: object) -> str | None:
    if given is not None and not isinstance(given, str):
        raise TypeError(f"{type(given).__name__} where text belongs")
    return given


def _gold(given: object) -> Fraction:
    text = str(given).rpartition("####")[2].strip()
    gold = decimal(text)
    if gold is None:
        raise ValueError(f"gold {text!r} is no number")
    return gold


def _sample(row: Scored) -> dict[str, Any]:
    return {
        "strict": row.strict,
        "flexible": row.flexible,
        "answer": row.answer,
        "correct": row.correct,
        "correct_strict": row.correct_strict,
        "state": row.state.value,
    }


def _share(right: int, n: int) -> float | None:
    return right / n if n else None
