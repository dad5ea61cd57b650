"""What of a completion is its answer: reasoning taken off, and the next question that the model made up.

Numbers inside reasoning are never scored: a draft is no answer (lm-evaluation-harness issue 3382).
"""

import re
from dataclasses import dataclass

_NAMES = r"(?:think|thinking|reasoning|thought)"
_CLOSING = re.compile(rf"</{_NAMES}>", re.IGNORECASE)
_OPENING = re.compile(rf"<{_NAMES}>", re.IGNORECASE)
_CHANNEL = "<|channel|>"
_FINAL = "<|channel|>final<|message|>"

# A line that begins another turn, or a special token that the server let through.
_RUN_ON = re.compile(
    r"^[ \t*#>]{0,16}(?:Question|Q|Problem|User|Human|Assistant):"
    r"|<\|[^|<>\n]{1,40}\|>|<\uff5c[^\uff5c<>\n]{1,40}\uff5c>|</?s>|<(?:bos|eos|pad|unk|start_of_turn|end_of_turn)>|\[/?INST\]",
    re.MULTILINE,
)
_DIGIT = re.compile(r"[0-9\uff10-\uff19]")


@dataclass(frozen=True, kw_only=True, slots=True)
class Visible:
    """The part of a completion that counts. `unfinished`: it ended inside its reasoning, so no answer was given."""

    text: str
    unfinished: bool = False


def visible(completion: str | None) -> Visible:
    """Take off reasoning (`<think>` and its like, harmony channels), then whatever follows the answer."""
    shown = _without_reasoning(completion or "")
    return Visible(text=_without_run_on(shown.text), unfinished=shown.unfinished)


def _without_reasoning(text: str) -> Visible:
    if _CHANNEL in text:
        _, final, text = text.rpartition(_FINAL)
        if not final:
            return Visible(text="", unfinished=True)
    text = _CLOSING.split(text)[-1]
    opening = _OPENING.search(text)
    return Visible(text=text[: opening.start()], unfinished=True) if opening else Visible(text=text)


def _without_run_on(text: str) -> str:
    """Cut at the first new turn after a digit: before any digit there was no answer yet that it could follow."""
    digit = _DIGIT.search(text)
    if not digit:
        return text
    cut = _RUN_ON.search(text, digit.end())
    return text[: cut.start()] if cut else text
