"""What became of each question. Seven states, never merged: a server that fails is no model that errs.

correct    the answer, as the run's scorer reads it, is the gold one
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
from fractions import Fraction
from statistics import median
from types import UnionType
from typing import Any, get_origin, get_type_hints

from disagg_cli.evals.answers import gold_answer, is_right, read_answer
from disagg_cli.evals.client import Exchange
from disagg_cli.evals.data import Question
from disagg_cli.evals.events import Failure, failure
from disagg_cli.evals.numerals import canonical
from disagg_cli.evals.scorers import SCORERS, Read

_DEADLINES = ("first_token", "idle", "request", "run")
_FAR_OFF = 4
_LONGEST_PIECE = 64


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
    answer: str | None
    strict: str | None
    flexible: str | None
    correct: bool
    correct_strict: bool
    correct_flexible: bool
    repetition: bool
    completion: str
    pieces: list[int]
    reasoning_characters: int
    server: Mapping[str, int]
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
        """From a JSON object. KeyError, TypeError or ValueError where it is none of ours."""
        known = {name: row[name] for name in _KINDS}
        if wrong := [name for name, kind in _KINDS.items() if kind and not isinstance(known[name], kind)]:
            raise TypeError(f"{wrong[0]} is {known[wrong[0]]!r}")
        known["state"] = State(row["state"])
        known["failure"] = Failure(**row["failure"]) if row["failure"] else None
        known["gaps"] = {int(key): int(count) for key, count in row["gaps"].items()}
        return cls(**known)


def _kind(hint: Any) -> Any:
    """What a field is in JSON; None where `Sample.from_dict` looks closer."""
    if hint in (State, object, Failure | None):
        return None
    origin = get_origin(hint)
    return hint if origin in (None, UnionType) else origin


_KINDS = {name: _kind(hint) for name, hint in get_type_hints(Sample).items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Scored:
    """A completion's answers and its state. `answer` and `correct` are the scorer's; the others are our own rules'.

    A failed request has only its state.
    """

    state: State
    answer: str | None = None
    strict: str | None = None
    flexible: str | None = None
    correct: bool = False
    correct_strict: bool = False
    correct_flexible: bool = False


def score(completion: str | None, worked: str, finish_reason: str | None = None, scorer: str = "flexible") -> Scored:
    """Score a whole answer. `worked`: the gold answer in GSM8K's form, `#### 18` at its end."""
    return score_against(completion, Fraction(gold_answer(worked)), worked, finish_reason, scorer)


def score_against(
    completion: str | None, gold: Fraction, worked: str, finish_reason: str | None, scorer: str
) -> Scored:
    """The same with the gold number at hand; other harnesses' scorers read theirs from `worked`."""
    answer = read_answer(completion)
    strict, flexible = canonical(answer.strict), canonical(answer.flexible)
    right = is_right(answer.flexible, gold)
    read = Read(answer=flexible, right=right) if scorer == "flexible" else SCORERS[scorer](completion or "", worked)
    return Scored(
        answer=read.answer,
        strict=strict,
        flexible=flexible,
        correct=read.right,
        correct_strict=is_right(answer.strict, gold),
        correct_flexible=right,
        state=_state(read, cut=finish_reason == "length", unfinished=answer.unfinished),
    )


def _state(read: Read, *, cut: bool, unfinished: bool) -> State:
    if cut or (unfinished and read.answer is None):
        return State.TRUNCATED
    if read.right:
        return State.CORRECT
    return State.INVALID if read.answer is None else State.WRONG


def sample_of(question: Question, exchange: Exchange, *, order: int, prompt_characters: int, scorer: str) -> Sample:
    """Score an exchange. A failed one is never scored, whatever text it brought."""
    if exchange.failure:
        scored = Scored(state=_failed(exchange.failure))
    else:
        scored = score(exchange.text, question.answer, exchange.finish_reason, scorer)
    timing = exchange.timing
    return Sample(
        id=question.id,
        order=order,
        rid=exchange.request.rid,
        gold=question.gold,
        state=scored.state,
        answer=scored.answer,
        strict=scored.strict,
        flexible=scored.flexible,
        correct=scored.correct,
        correct_strict=scored.correct_strict,
        correct_flexible=scored.correct_flexible,
        repetition=repeats(exchange.text),
        completion=exchange.text,
        pieces=exchange.pieces,
        reasoning_characters=exchange.reasoning_characters,
        server=exchange.server,
        finish_reason=exchange.finish_reason,
        matched_stop=exchange.matched_stop,
        failure=exchange.failure,
        prompt_tokens=exchange.prompt_tokens,
        prompt_characters=prompt_characters,
        completion_tokens=exchange.completion_tokens,
        cached_tokens=exchange.cached_tokens,
        bytes_received=exchange.bytes_received,
        started_at=exchange.started_at,
        first_token_s=timing.first_token_s,
        second_token_gap_s=timing.second_token_gap_s,
        tpot_s=timing.tpot_s,
        end_to_end_s=timing.end_to_end_s,
        gaps=timing.gaps,
    )


def _failed(trouble: Failure) -> State:
    if trouble.kind in _DEADLINES:
        return State.TIMEOUT
    return State.SKIPPED if trouble.kind == "stopped" else State.ERROR


def repeats(text: str) -> bool:
    """The text ends in one short piece (up to 64 characters) over and over: 8 times and at least 24 characters."""
    tail = text.rstrip()[-512:]
    if len(tail) < 24:
        return False
    end = tail[-8:]  # stands once more, one piece earlier, in whatever repeats
    earlier = tail.rfind(end, 0, -1)
    while earlier >= 0 and (length := len(tail) - len(end) - earlier) <= _LONGEST_PIECE:
        if tail.endswith(tail[-length:] * max(8, -(-24 // length))):
            return True
        earlier = tail.rfind(end, 0, earlier + len(end) - 1)
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
