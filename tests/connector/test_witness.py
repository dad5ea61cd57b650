"""Decode's own account of who reported a probe's transfer as complete."""

from disagg_cli.connector import witness

ROOM = witness.new_room()


def log(*senders):
    return "\n".join(["a line of SGLang's", witness.LISTENS, *(witness.heard(ROOM, 3, one) for one in senders), ""])


def test_senders_are_read_in_order_with_repeats():
    assert witness.read(log(1, 0, 1), ROOM) == {3: (1, 0, 1)}


def test_another_request_is_not_mistaken_for_this_one():
    assert witness.read(log(1, 0), witness.new_room()) == {}


def test_silence_is_not_the_word_of_a_witness():
    assert witness.read("a line of SGLang's", ROOM) is None


def test_only_the_rooms_of_probes_are_listened_to():
    assert witness.is_probe(ROOM)
    assert 0 < ROOM < 1 << 62
    assert not any(witness.is_probe(room) for room in (0, 12345, ROOM >> 1, 1 << 62))
