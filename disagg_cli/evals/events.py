"""Reading a streamed answer: server-sent events of `/v1/completions`, cheaply.

A 512-way run sees 100,000 events a second, and decoding the JSON of each would be most of the client's work. Events of
one answer are byte for byte alike but for the text. So the bytes before and after the text of the last event that was
decoded are kept: a line that begins and ends the same, with neither quote nor backslash between, has the same JSON
meaning, and what stands between is the text. Every other line is decoded.
"""

import json
import re
from dataclasses import dataclass
from typing import Any

_ROOM = re.compile(r"bootstrap_room=(\d{1,20})")
_LONGEST_MESSAGE = 600


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """Why an attempt brought no answer. `room`: the PD bootstrap room, where the message names it (both logs have it).

    Kinds: connect, http, cut, protocol, in_stream, abort, prompt_tokens (errors); first_token, idle, request, run
    (deadlines); stopped (the run ended first).
    """

    kind: str
    message: str
    status: int | None = None
    room: str | None = None


def failure(kind: str, message: str, status: int | None = None) -> Failure:
    """A failure, its message cut to a sane length and searched for the bootstrap room."""
    room = _ROOM.search(message)
    return Failure(kind=kind, message=message[:_LONGEST_MESSAGE], status=status, room=room[1] if room else None)


class Reply:
    """What one answer says, filled event by event (`feed`) or at once (`whole`)."""

    __slots__ = (
        "_least",
        "_pieces",
        "_prefix",
        "_rest",
        "_suffix",
        "cached_tokens",
        "completion_tokens",
        "done",
        "events",
        "finish_reason",
        "matched_stop",
        "prompt_tokens",
        "trouble",
    )

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._rest = b""
        self._prefix, self._suffix, self._least = b"\0", b"\0", 0
        self.done = False
        self.events = 0
        self.finish_reason: str | None = None
        self.matched_stop: object = None
        self.prompt_tokens: int | None = None
        self.completion_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.trouble: Failure | None = None

    @property
    def text(self) -> str:
        """All text so far."""
        return b"".join(self._pieces).decode(errors="replace")

    def feed(self, data: bytes) -> int:
        """Take what arrived; how many events with text were in it."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        before = self.events
        for line in lines:
            if line.startswith(self._prefix) and line.endswith(self._suffix) and len(line) > self._least:
                piece = line[len(self._prefix) : -len(self._suffix)]
                if b'"' not in piece and b"\\" not in piece:
                    self._pieces.append(piece)
                    self.events += 1
                    continue
            if len(line) > 1:
                self._line(line)
        return self.events - before

    def whole(self, body: bytes) -> None:
        """Take the body of an answer that was not streamed."""
        event = self._decode(body)
        if event is not None:
            self._event(event)
        self.done = True

    def _line(self, line: bytes) -> None:
        if not line.startswith(b"data:"):
            return  # a comment, or another field of the event
        payload = line[5:].strip()
        if payload == b"[DONE]":
            self.done = True
            return
        event = self._decode(payload)
        text = self._event(event) if event is not None else ""
        if text and self.finish_reason is None:
            self._learn(line, text)

    def _decode(self, payload: bytes) -> dict[str, Any] | None:
        try:
            event = json.loads(payload)
        except (ValueError, RecursionError):
            event = None
        if isinstance(event, dict):
            return event
        self._fail("protocol", f"not a JSON object: {payload[:200]!r}")
        return None

    def _event(self, event: dict[str, Any]) -> str:
        """Note all that an event says; its text."""
        if event.get("error") or event.get("object") == "error":
            self._error(event)
            return ""
        self._usage(event.get("usage"))
        choices = event.get("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            return ""
        return self._choice(choices[0])

    def _choice(self, choice: dict[str, Any]) -> str:
        if reason := choice.get("finish_reason"):
            self.finish_reason = str(reason)
            self.matched_stop = choice.get("matched_stop")
        text = choice.get("text")
        if not isinstance(text, str) or not text:
            return ""
        self._pieces.append(text.encode(errors="replace"))
        self.events += 1
        return text

    def _usage(self, usage: object) -> None:
        if not isinstance(usage, dict):
            return
        self.prompt_tokens = _count(usage.get("prompt_tokens"), self.prompt_tokens)
        self.completion_tokens = _count(usage.get("completion_tokens"), self.completion_tokens)
        details = usage.get("prompt_tokens_details")
        if isinstance(details, dict):
            self.cached_tokens = _count(details.get("cached_tokens"), self.cached_tokens)

    def _error(self, event: dict[str, Any]) -> None:
        error = event.get("error")
        said = error if isinstance(error, dict) else event
        message = said.get("message") or (
            error if isinstance(error, str) else "the server sent an error without a message"
        )
        status = said.get("code")
        self._fail("in_stream", str(message), status if isinstance(status, int) else None)

    def _fail(self, kind: str, message: str, status: int | None = None) -> None:
        if self.trouble is None:
            self.trouble = failure(kind, message, status)

    def _learn(self, line: bytes, text: str) -> None:
        """Remember the bytes around the text, if they can be told for sure."""
        key = line.find(b'"text":')
        start = line.find(b'"', key + 7) + 1
        piece = text.encode(errors="replace")
        end = start + len(piece)
        sure = key > 0 and line.count(b'"text":') == 1 and not line[key + 7 : start - 1].strip()
        if sure and line[start:end] == piece and line[end : end + 1] == b'"':
            self._prefix, self._suffix, self._least = line[:start], line[end:], len(line) - len(piece)


def _count(value: object, known: int | None) -> int | None:
    return value if isinstance(value, int) else known
