"""Reading an answer as it is streamed, cheaply: `/v1/completions`, `/v1/chat/completions` and `/generate`.

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
_LONGEST_LINE = 8 << 20  # the longest that a server sends, 16,000 tokens at once in /generate, has 200 kB
_FIELDS = (b":", b"event:", b"id:", b"retry:")  # of an event stream, beside data


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
    """What one answer of `/v1/completions` says, filled event by event (`feed`) or at once (`whole`).

    `server`: what the worker that answered says of itself (`dp_rank`, `num_retractions`), and only `/generate` does.
    No answer names its decode worker: sglang-router 0.3.2 adds no header but `x-request-id`, its own, and in SGLang
    0.5.23's `meta_info` the `id` is the request's, and `dp_rank` null without data parallelism. How many answers each
    worker gave is told by its counters (`served`).
    """

    _key = b'"text":'
    __slots__ = (
        "_least",
        "_pieces",
        "_prefix",
        "_rest",
        "_stray",
        "_suffix",
        "cached_tokens",
        "completion_tokens",
        "done",
        "events",
        "finish_reason",
        "matched_stop",
        "prompt_tokens",
        "reasoning_characters",
        "server",
        "trouble",
    )

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._rest = self._stray = b""
        self._prefix, self._suffix, self._least = b"\0", b"\0", 0
        self.done = False
        self.events = 0
        self.finish_reason: str | None = None
        self.matched_stop: object = None
        self.prompt_tokens: int | None = None
        self.completion_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.reasoning_characters = 0
        self.server: dict[str, int] = {}
        self.trouble: Failure | None = None

    @property
    def text(self) -> str:
        """All text so far."""
        return b"".join(self._pieces).decode(errors="replace")

    @property
    def pieces(self) -> list[int]:
        """Lengths in characters of the pieces in which the text came: a token each, as a rule."""
        return [len(piece) if piece.isascii() else len(piece.decode(errors="replace")) for piece in self._pieces]

    def feed(self, data: bytes) -> int:
        """Take what arrived; how many events with text were in it."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > _LONGEST_LINE:
            self._fail("protocol", f"a line of more than {_LONGEST_LINE >> 20} MiB")
        before = self.events
        for line in lines:
            if line.startswith(self._prefix) and line.endswith(self._suffix) and len(line) > self._least:
                piece = line[len(self._prefix) : -len(self._suffix)]
                if b'"' not in piece and b"\\" not in piece:
                    self._pieces.append(piece)
                    self.events += 1
                    continue
            if line and line != b"\r":
                self._line(line)
        return self.events - before

    def end(self) -> None:
        """The body is over. Its last line may lack a newline; what is no event stream at all may say why."""
        if self._rest.startswith(b"data:"):
            self._line(self._rest)
        elif self.events == 0 and not self.done and (stray := (self._stray + self._rest).strip()):
            self._not_streamed(stray)

    def whole(self, body: bytes) -> None:
        """Take the body of an answer that was not streamed."""
        event = self._decode(body)
        if event is not None:
            self._event(event)
        self.done = True

    def _line(self, line: bytes) -> None:
        if not line.startswith(b"data:"):
            if not line.startswith(_FIELDS) and len(self._stray) < _LONGEST_MESSAGE:
                self._stray += line + b"\n"
            return
        payload = line[5:].strip()
        if payload == b"[DONE]":
            self.done = True
            return
        event = self._decode(payload)
        text = self._event(event) if event is not None else ""
        if text and self.finish_reason is None:
            self._learn(line, text)

    def _not_streamed(self, body: bytes) -> None:
        try:
            event = json.loads(body)
        except (ValueError, RecursionError):
            event = None
        if isinstance(event, dict) and event.get("error"):
            self._error(event)
        else:
            self._fail("protocol", f"no event stream (--no-stream asks for none): {_quoted(body)}")

    def _decode(self, payload: bytes) -> dict[str, Any] | None:
        try:
            event = json.loads(payload)
        except (ValueError, RecursionError):
            event = None
        if isinstance(event, dict):
            return event
        self._fail("protocol", f"not a JSON object: {_quoted(payload)}")
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
        self._finish(choice)
        return self._take(choice.get("text"))

    def _finish(self, choice: dict[str, Any]) -> None:
        if reason := choice.get("finish_reason"):
            self.finish_reason = str(reason)
            self.matched_stop = choice.get("matched_stop")

    def _take(self, text: object) -> str:
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
        key = line.find(self._key)
        past = key + len(self._key)
        start = line.find(b'"', past) + 1
        piece = text.encode(errors="replace")
        end = start + len(piece)
        sure = key > 0 and line.count(self._key) == 1 and not line[past : start - 1].strip()
        if sure and line[start:end] == piece and line[end : end + 1] == b'"':
            self._prefix, self._suffix, self._least = line[:start], line[end:], len(line) - len(piece)


class ChatReply(Reply):
    """An answer of `/v1/chat/completions`. Reasoning that the server has split off is counted, and never scored."""

    _key = b'"content":'
    __slots__ = ()

    def _choice(self, choice: dict[str, Any]) -> str:
        self._finish(choice)
        said = choice.get("delta") or choice.get("message")
        if not isinstance(said, dict):
            return ""
        thought = said.get("reasoning_content")
        if isinstance(thought, str) and thought:
            self.reasoning_characters += len(thought)
            self.events += 1
        return self._take(said.get("content"))


class GenerateReply(Reply):
    """An answer of SGLang's `/generate`, whose events carry the whole text so far (or, if so started, what is new)."""

    _key = b"\0"
    __slots__ = ("_seen",)

    def __init__(self) -> None:
        super().__init__()
        self._seen = ""

    def _event(self, event: dict[str, Any]) -> str:
        if event.get("error"):
            self._error(event)
            return ""
        text, meta = event.get("text"), event.get("meta_info")
        if isinstance(text, str):
            new = text.removeprefix(self._seen)
            self._seen = text if len(new) < len(text) or not self._seen else self._seen + new
            self._take(new)
        if isinstance(meta, dict):
            self._meta(meta)
        return ""

    def _meta(self, meta: dict[str, Any]) -> None:
        for name in ("prompt_tokens", "completion_tokens", "cached_tokens"):
            setattr(self, name, _count(meta.get(name), getattr(self, name)))
        for name in ("dp_rank", "num_retractions"):
            if isinstance(meta.get(name), int):
                self.server[name] = meta[name]
        reason = meta.get("finish_reason")
        if isinstance(reason, dict):
            self.finish_reason = str(reason.get("type"))
            self.matched_stop = reason.get("matched")
            if reason.get("message"):
                status = reason.get("status_code")
                self._fail("abort", str(reason["message"]), status if isinstance(status, int) else None)


REPLIES: dict[str, type[Reply]] = {"completions": Reply, "chat": ChatReply, "generate": GenerateReply}
"""How the answers of each endpoint are read."""


def _quoted(payload: bytes) -> str:
    return " ".join(payload[:200].decode(errors="replace").split())


def _count(value: object, known: int | None) -> int | None:
    return value if isinstance(value, int) else known
