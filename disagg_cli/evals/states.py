"""What became of each question. Seven states, never merged: a server that fails is no model that errs.

correct    the flexible answer is the gold one
wrong      another number
invalid    text, or no text, without a number
truncated  cut at max_tokens, or inside its reasoning; the number found, if any, may still be right (`correct`)
error      the server or the connection failed: HTTP status, in-stream error, abort, cut body, impossible prompt_tokens
timeout    no end before a deadline
skipped    never asked, or dropped because the run ended first
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from statistics import median
from typing import Any

from disagg_cli.evals.answers import is_right, read_answer
from disagg_cli.evals.client import Exchange
from disagg_cli.evals.data import Question
from disagg_cli.evals.events import Failure, failure
from disagg_cli.evals.numerals import canonical

_DEADLINES = ("first_token", "idle", "request", "run")
_FAR_OFF = 4


class State(StrEnum):
    """What became of a question."""

    CORRECT = "correct"
    WRONG = "wrong"
    INVALID = "invalid"
    TRUNCATED = "truncated"
    ERROR = "error"
    TIMEOUT = "timeout"
    SKIPPED = "skipped"


ANSWERED = frozenset({State.CORRECT, State.WRONG, State.INVALID, State.TRUNCATED})


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One line of samples.jsonl: a question, what came back, how it was scored, and how long it took (seconds)."""

    id: str
    order: int
    rid: str
    state: State
    gold: int
    strict: str | None
    flexible: str | None
    correct: bool
    correct_strict: bool
    repetition: bool
    completion: str
    finish_reason: str | None
    matched_stop: object
    failure: Failure | None
    prompt_tokens: int | None
    prompt_characters: int
    completion_tokens: int | None
    cached_tokens: int | None
    bytes_received: int
    started_at: float
    first_token_s: float | None
    second_token_gap_s: float | None
    tpot_s: float | None
    end_to_end_s: float
    gaps: Mapping[int, int]

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        document = {field.name: getattr(self, field.name) for field in fields(self)}
        return document | {"failure": asdict(self.failure) if self.failure else None}

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> "Sample":
        """From a JSON object. KeyError or ValueError where it is none of ours."""
        known = {field.name: row[field.name] for field in fields(cls)}
        known["state"] = State(row["state"])
        known["failure"] = Failure(**row["failure"]) if row["failure"] else None
        known["gaps"] = {int(key): int(count) for key, count in row["gaps"].items()}
        return cls(**known)


@dataclass(frozen=True, kw_only=True, slots=True)
class Scored:
    """A completion's answers, canonical, and its state."""

    strict: str | None
    flexible: str | None
    correct: bool
    correct_strict: bool
    state: State


def score(completion: str | None, gold: int, finish_reason: str | None = None) -> Scored:
    """Score a whole answer."""
    answer = read_answer(completion)
    right = is_right(answer.flexible, gold)
    return Scored(
        strict=canonical(answer.strict),
        flexible=canonical(answer.flexible),
        correct=right,
        correct_strict=is_right(answer.strict, gold),
        state=_state(
            right=right, found=answer.flexible is not None, cut=finish_reason == "length", unfinished=answer.unfinished
        ),
    )


def _state(*, right: bool, found: bool, cut: bool, unfinished: bool) -> State:
    if cut or (unfinished and not found):
        return State.TRUNCATED
    if right:
        return State.CORRECT
    return State.WRONG if found else State.INVALID


def sample_of(question: Question, exchange: Exchange, order: int, prompt_characters: int) -> Sample:
    """Score an exchange. A failed one is never scored, whatever text it brought."""
    if exchange.failure:
        scored = Scored(
            strict=None, flexible=None, correct=False, correct_strict=False, state=_failed(exchange.failure)
        )
    else:
        scored = score(exchange.text, question.gold, exchange.finish_reason)
    return Sample(
        id=question.id,
        order=order,
        rid=exchange.request.rid,
        state=scored.state,
        gold=question.gold,
        strict=scored.strict,
        flexible=scored.flexible,
        correct=scored.correct,
        correct_strict=scored.correct_strict,
        repetition=repeats(exchange.text),
        completion=exchange.text,
        finish_reason=exchange.finish_reason,
        matched_stop=exchange.matched_stop,
        failure=exchange.failure,
        prompt_tokens=exchange.prompt_tokens,
        prompt_characters=prompt_characters,
        completion_tokens=exchange.completion_tokens,
        cached_tokens=exchange.cached_tokens,
        bytes_received=exchange.bytes_received,
        started_at=exchange.started_at,
        first_token_s=exchange.timing.first_token_s,
        second_token_gap_s=exchange.timing.second_token_gap_s,
        tpot_s=exchange.timing.tpot_s,
        end_to_end_s=exchange.timing.end_to_end_s,
        gaps=exchange.timing.gaps,
    )


def _failed(trouble: Failure) -> State:
    if trouble.kind in _DEADLINES:
        return State.TIMEOUT
    return State.SKIPPED if trouble.kind == "stopped" else State.ERROR


def repeats(text: str) -> bool:
    """The text ends in one short piece (up to 64 characters) over and over: 8 times and at least 24 characters."""
    tail = text.rstrip()[-512:]
    for length in range(1, 65):
        times = max(8, -(-24 // length))
        if length * times > len(tail):
            return False
        if tail.endswith(tail[-length:] * times):
            return True
    return False


def with_strange_prompts(samples: Iterable[Sample]) -> list[Sample]:
    """Turn answers to a prompt of impossible length into errors.

    Without a tokenizer the run itself is the measure: a count 4 times off the median, and 4 times off what the prompt's
    length makes of it, belongs to another prompt. Answers to those are noise, not wrong answers (sglang issue 30233).
    """
    everything = list(samples)
    known = [sample for sample in everything if sample.prompt_tokens and sample.prompt_characters]
    if len(known) < 3:
        return everything
    usual = median(sample.prompt_tokens or 0 for sample in known)
    rate = median((sample.prompt_tokens or 0) / sample.prompt_characters for sample in known)
    return [_doubt(sample, usual, rate * sample.prompt_characters) for sample in everything]


def _doubt(sample: Sample, usual: float, expected: float) -> Sample:
    count = sample.prompt_tokens
    if sample.state not in ANSWERED or not count or not (_far(count, usual) and _far(count, expected)):
        return sample
    why = failure("prompt_tokens", f"the server counted {count} prompt tokens where about {expected:.0f} are right")
    return replace(
        sample, state=State.ERROR, failure=why, correct=False, correct_strict=False, strict=None, flexible=None
    )


def _far(count: float, expected: float) -> bool:
    return count * _FAR_OFF < expected or count > expected * _FAR_OFF
