"""The answer of a completion, by two rules, and whether it is right. Pure functions; no input raises or hangs.

strict    the first `#### number`, one space between, as the original GSM8K code reads it, but compared as a number
flexible  in this order: the first `####` that carries a number; the last closed `\\boxed{}` with one; the last
          "answer is" or "answer:" that a number follows at once; the last number; none

The first marker wins over the last because completions run on into a next question; reasoning, in which few-shot
examples are recited, is taken off before (see `visible`).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from disagg_cli.evals.numerals import decimal, first_number, last_number, normalize, number_at, value
from disagg_cli.evals.visible import visible

_TOLERANCE = Fraction(1, 1_000_000)
_STRICT = re.compile(r"#### (-?[0-9.,]+)")
_STRICT_NUMBER = re.compile(r"-?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?|-?\.[0-9]+")
_GOLD = re.compile(r"^#### (-?[0-9]{1,3}(?:,[0-9]{3})+|-?[0-9]{1,30})\s*\Z", re.MULTILINE)
_MARKER = re.compile(r"#{4,}[ \t*$]*")
_BRACE = re.compile(r"\\[{}]|(?P<box>\\f?box(?:ed)?[ ]?\{)|\{|\}")
_BOXES, _BOX_LENGTH = 64, 1000
_PHRASE = re.compile(r"answer[*_]{0,3}(?:\s{1,4}is|\s{0,4}:)(?:[ \t*_`:$€£₹]|\\[(\[$]){0,20}", re.IGNORECASE)
_CLAUSE = re.compile(r"(?:(?![.!?;](?:\s|$)|\([A-Za-z])[^\n]){0,400}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What a completion answers. `unfinished`: it ended inside its reasoning."""

    strict: Fraction | None
    flexible: Fraction | None
    unfinished: bool = False


def read_answer(completion: str | None) -> Answer:
    """Read a completion by both rules."""
    shown = visible(completion)
    return Answer(strict=_strict(shown.text), flexible=_flexible(shown.text), unfinished=shown.unfinished)


def is_right(answer: Fraction | None, gold: Fraction | int) -> bool:
    """The same number. No relative tolerance (70001 is not 70000), no leniency for percent."""
    return answer is not None and (answer == gold or abs(answer - gold) < _TOLERANCE)


def gold_answer(worked: str) -> int:
    """The number behind the one `#### ` of a worked answer in GSM8K's form. ValueError where there is none."""
    found = _GOLD.search(worked)
    if not found:
        raise ValueError("no integer after '#### ' at the end of the answer")
    return int(found[1].replace(",", ""))


def _strict(text: str) -> Fraction | None:
    found = _STRICT.search(text)
    number = found and found[1].rstrip(".,")
    return decimal(number) if number and _STRICT_NUMBER.fullmatch(number) else None


def _flexible(raw: str) -> Fraction | None:
    text = normalize(raw)
    return value(_marked(text) or _boxed(text) or _said(text) or last_number(text))


def _marked(text: str) -> re.Match[str] | None:
    numbers = (number_at(text, marker.end()) for marker in _MARKER.finditer(text))
    return next(filter(None, numbers), None)


def _boxed(text: str) -> re.Match[str] | None:
    boxes = (first_number(content.rpartition("=")[2]) for content in _closed_boxes(text))
    return next(filter(None, boxes), None)


def _closed_boxes(text: str) -> Iterator[str]:
    """Contents of `\\boxed{}` and `\\fbox{}` whose brace closes, the last opened first.

    One pass finds them; at most `_BOXES` of at most `_BOX_LENGTH` characters are looked at, so that thousands of nested
    boxes cost no more than a few.
    """
    open_braces: list[tuple[int, bool]] = []
    boxes: list[tuple[int, int]] = []
    for brace in _BRACE.finditer(text) if "box" in text else ():
        if brace["box"] or brace[0] == "{":
            open_braces.append((brace.end(), bool(brace["box"])))
        elif brace[0] == "}" and open_braces:
            start, is_box = open_braces.pop()
            if is_box:
                boxes.append((start, brace.start()))
    for start, end in sorted(boxes, reverse=True)[:_BOXES]:
        yield text[start : min(end, start + _BOX_LENGTH)]


def _said(text: str) -> re.Match[str] | None:
    for phrase in reversed(list(_PHRASE.finditer(text))):
        number = number_at(text, phrase.end())
        if number:
            return _result(text, number)
    return None


def _result(text: str, number: re.Match[str]) -> re.Match[str]:
    """Right of the last `=` where the sentence is a calculation ("Answer: 16 - 3 - 4 = 9"), else the number itself."""
    clause = _CLAUSE.match(text, number.start())
    _, equals, right = clause[0].rpartition("=") if clause else ("", "", "")
    return (first_number(right) if equals else None) or number
