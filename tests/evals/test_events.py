"""Reading streamed answers, whole and broken, in any cut."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mock_server import event, usage

from disagg_cli.evals.events import REPLIES, ChatReply, GenerateReply, Reply


def stream(*pieces: str, finish: str = "stop") -> bytes:
    return b"".join(map(event, pieces)) + event("", finish) + usage(900, len(pieces)) + b"data: [DONE]\n\n"


def read(data: bytes, cut: int | None = None) -> Reply:
    reply = Reply()
    step = cut or len(data)
    for start in range(0, len(data), step):
        reply.feed(data[start : start + step])
    return reply


def test_a_whole_answer():
    reply = read(stream(" It", " is", " 18"))
    assert (reply.text, reply.finish_reason, reply.done, reply.trouble) == (" It is 18", "stop", True, None)
    assert (reply.prompt_tokens, reply.completion_tokens, reply.events) == (900, 3, 3)


@settings(deadline=None)
@given(st.lists(st.text(min_size=1, max_size=8), max_size=12), st.integers(1, 400))
def test_any_text_in_any_cut(pieces, cut):
    """Quotes, backslashes, escapes, other scripts: the short way and the JSON decoder agree."""
    pieces = [piece.encode(errors="ignore").decode() for piece in pieces]
    assert read(stream(*pieces), cut).text == "".join(pieces)


def test_lines_that_end_in_crlf():
    assert read(stream("a", "b", "c").replace(b"\n", b"\r\n")).text == "abc"


def test_a_changed_frame_is_decoded_anew():
    events = [event(text, created=second) for text, second in (("a", 1), ("b", 1), ("c", 2), ("d", 2))]
    assert read(b"".join(events)).text == "abcd"


def test_text_after_learning_may_hold_quotes():
    assert read(stream("a", "b", 'c", "text": "d', "e\\")).text == 'abc", "text": "de\\'


def test_comments_and_other_fields_are_skipped():
    assert read(b": ping\n\nevent: x\nid: 1\n" + stream("a")).text == "a"


def test_how_many_pieces_came_at_once():
    reply = Reply()
    assert reply.feed(event("a")) == 1
    assert reply.feed(event("b") + event("c")) == 2
    assert reply.feed(usage(9, 3)) == 0


@pytest.mark.parametrize(
    ("line", "kind", "message", "status"),
    [
        ({"error": {"message": "m", "code": 503}}, "in_stream", "m", 503),
        ({"error": "text"}, "in_stream", "text", None),
        ({"object": "error", "message": "m", "code": 400}, "in_stream", "m", 400),
        ([1], "protocol", "not a JSON object: [1]", None),
    ],
)
def test_trouble(line, kind, message, status):
    trouble = read(event("a") + f"data: {json.dumps(line)}\n\n".encode()).trouble
    assert (trouble.kind, trouble.message, trouble.status) == (kind, message, status)


def test_the_bootstrap_room_is_found():
    line = json.dumps({"error": {"message": "KVTransferError(bootstrap_room=4711): Request 4711 timed out"}})
    assert read(f"data: {line}\n\n".encode()).trouble.room == "4711"


def test_a_last_line_may_lack_its_newline():
    reply = read(stream("a").rstrip(b"\n"))
    assert not reply.done
    reply.end()
    assert (reply.done, reply.trouble) == (True, None)


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        (b'{"error": {"message": "transfer failed"}}', "in_stream", "transfer failed"),
        (b'{\n "error": {\n  "message": "transfer failed"}\n}\n', "in_stream", "transfer failed"),
        (b'{"choices": [{"text": "18"}]}', "protocol", "no event stream (--no-stream asks for none): {"),
        (b"<html>\nsign in\n</html>\n", "protocol", "no event stream (--no-stream asks for none): <html> sign in"),
        (b"", None, None),
        (b": ping\n\n", None, None),
    ],
)
def test_what_was_not_streamed_says_why(body, kind, message):
    reply = read(body, 5)
    reply.end()
    assert (reply.trouble and reply.trouble.kind) == kind
    assert message is None or reply.trouble.message.startswith(message)


def test_a_line_without_end_is_given_up(monkeypatch):
    monkeypatch.setattr("disagg_cli.evals.events._LONGEST_LINE", 100)
    assert read(b"data: " + b"x" * 101).trouble.message.startswith("a line of more than")


@pytest.mark.parametrize("body", [b"", b"null", b"[[[", b'{"choices": 5}', b'{"choices": [5], "usage": 3}'])
def test_strange_bodies_do_not_raise(body):
    reply = Reply()
    reply.whole(body)
    assert reply.text == ""


def test_deep_nesting_does_not_raise():
    assert read(b"data: " + b"[" * 100_000 + b"\n\n").trouble.kind == "protocol"


def line(**event) -> bytes:
    return f"data: {json.dumps(event)}\n\n".encode()


def delta(**said) -> bytes:
    return line(choices=[{"index": 0, "delta": {"role": None, "content": None} | said, "finish_reason": None}])


@settings(deadline=None)
@given(st.lists(st.text(min_size=1, max_size=8), max_size=12), st.integers(1, 400))
def test_any_chat_in_any_cut(pieces, cut):
    pieces = [piece.encode(errors="ignore").decode() for piece in pieces]
    data = delta(role="assistant", content="") + b"".join(delta(content=piece) for piece in pieces)
    reply = ChatReply()
    for start in range(0, len(data), cut):
        reply.feed(data[start : start + cut])
    assert (reply.text, reply.reasoning_characters) == ("".join(pieces), 0)


def test_reasoning_is_counted_not_scored():
    reply = ChatReply()
    assert reply.feed(delta(reasoning_content="so 9") + delta(reasoning_content="!") + delta(content="18")) == 3
    assert (reply.text, reply.reasoning_characters) == ("18", 5)


def test_a_whole_chat_answer():
    reply = ChatReply()
    reply.whole(json.dumps({"choices": [{"message": {"content": "18"}, "finish_reason": "length"}]}).encode())
    assert (reply.text, reply.finish_reason, reply.done) == ("18", "length", True)


@pytest.mark.parametrize("texts", [(" 1", " 18", " 18."), (" 1", "8", ".")], ids=["so far", "what is new"])
def test_generate_streams_all_or_what_is_new(texts):
    reply = GenerateReply()
    for text in texts:
        reply.feed(line(text=text, meta_info={"finish_reason": None}))
    assert (reply.text, reply.pieces) == (" 18.", [2, 1, 1])


def test_generate_aborts():
    reason = {"type": "abort", "message": "KVTransferError(bootstrap_room=5)", "status_code": 500}
    reply = GenerateReply()
    reply.feed(line(text="", meta_info={"finish_reason": reason, "dp_rank": 3}))
    assert (reply.trouble.kind, reply.trouble.status, reply.trouble.room) == ("abort", 500, "5")
    assert (reply.finish_reason, reply.server) == ("abort", {"dp_rank": 3})


leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
names = st.sampled_from(["choices", "text", "delta", "content", "error", "usage", "meta_info", "finish_reason", "code"])
events = st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4))


@settings(deadline=None)
@given(st.lists(events | st.binary(max_size=30), max_size=6), st.sampled_from(list(REPLIES)))
def test_no_event_raises(sent, endpoint):
    reply = REPLIES[endpoint]()
    for told in sent:
        payload = told if isinstance(told, bytes) else json.dumps(told).encode()
        reply.feed(b"data: " + payload + b"\n\n")
        reply.whole(payload)
    assert isinstance(reply.text, str)
