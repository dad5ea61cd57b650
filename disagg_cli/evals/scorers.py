"""Ways to read an answer: our two rules, and those of other harnesses, so that a score can be held against theirs.

Each scorer reads (completion, worked gold answer) into a number, or None where it finds none, and says whether it is
right. The others' rules are kept as they are, with their errors: that is what makes the figures comparable.
"""

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from disagg_cli.evals.answers import is_right, read_answer
from disagg_cli.evals.numerals import MAX_DIGITS, canonical, decimal

_SIGNED = re.compile(r"-?\d+\.?\d*")
_DIGITS = re.compile(r"\d+")
_FLEXIBLE = re.compile(r"(-?[$0-9.,]{2,})|(-?[0-9]+)")
_STRICT = re.compile(r"#### (-?[0-9.,]+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Read:
    """What a scorer makes of a completion: the answer it reads, if any, and whether that is right."""

    answer: str | None
    right: bool


Scorer = Callable[[str, str], Read]


def flexible(completion: str, worked: str) -> Read:
    """Our own rule, for every model."""
    found = read_answer(completion).flexible
    return Read(answer=canonical(found), right=is_right(found, _gold(worked)))


def strict(completion: str, worked: str) -> Read:
    """The original GSM8K rule: the number behind the first `#### `."""
    found = read_answer(completion).strict
    return Read(answer=canonical(found), right=is_right(found, _gold(worked)))


def sglang_run_eval(completion: str, worked: str) -> Read:
    """sglang.test.run_eval (0.5.23): the last `-?\\d+\\.?\\d*` once all commas are deleted, as a Python literal."""
    found, gold = (_literal(_last(_SIGNED, text.replace(",", ""))) for text in (completion, worked))
    return Read(answer=canonical(found), right=found is not None and found == gold)


def last_digits(completion: str, worked: str) -> Read:
    """sglang few_shot_gsm8k and vLLM's gsm8k_eval: the last `\\d+` once all commas are deleted; signs are lost."""
    found, gold = (_literal(_last(_DIGITS, text.replace(",", ""))) for text in (completion, worked))
    return Read(answer=canonical(found), right=found is not None and found == gold)


def lm_eval_strict(completion: str, worked: str) -> Read:
    """lm-evaluation-harness gsm8k v3, strict-match: compared as text."""
    found = _STRICT.search(completion)
    return _lm_eval(found[1] if found else None, worked)


def lm_eval_flexible(completion: str, worked: str) -> Read:
    """lm-evaluation-harness gsm8k v3, flexible-extract: compared as text."""
    return _lm_eval(_last(_FLEXIBLE, completion), worked)


def _gold(worked: str) -> Fraction:
    gold = decimal(worked.rpartition("#### ")[2])  # of GSM8K an integer; other data may have decimals
    if gold is None:
        raise ValueError("no number after '#### ' at the end of the answer")
    return gold


def _last(pattern: re.Pattern[str], text: str) -> str | None:
    last = deque(pattern.finditer(text), maxlen=1)
    return last[0][0] if last else None


def _literal(text: str | None) -> Fraction | None:
    """As ast.literal_eval reads it: no leading zeros in whole numbers, ASCII digits only."""
    if text is None or not text.isascii() or len(text) > MAX_DIGITS:
        return None
    whole = text.lstrip("-")
    if "." not in whole and len(whole) > 1 and whole.startswith("0") and whole.strip("0"):
        return None
    return decimal(text.rstrip("."))


def _lm_eval(found: str | None, worked: str) -> Read:
    if found is None:
        return Read(answer=None, right=False)
    answer = _as_text(found)
    return Read(answer=answer, right=answer == _as_text(worked.rpartition("#### ")[2]))


def _as_text(answer: str) -> str:
    return answer.replace(",", "").replace("$", "").removesuffix(".").lower()


SCORERS: dict[str, Scorer] = {
    "flexible": flexible,
    "strict": strict,
    "sglang-run-eval": sglang_run_eval,
    "last-digits": last_digits,
    "lm-eval-flexible": lm_eval_flexible,
    "lm-eval-strict": lm_eval_strict,
}
"""All scorers by name."""
