"""The witness: which prefill ranks told a decode rank that a probe's KV has arrived.

A decode rank counts completions and waits until enough different ones have come; where it waits for ever, nothing in
SGLang's logs says for whom. The witness writes one line for each completion of a probe's request, and of no other.
What is here is pure; hooks.py is imported only inside SGLang's processes.
"""

import re
import secrets
from collections import defaultdict

ENABLE = "DISAGG_WITNESS"
"""Environment variable that loads the witness; `disagg` sets it for decode workers."""

PREFIX = "disagg witness: "
LISTENS = f"{PREFIX}listens"
"""What a process writes to its log once the witness is there."""

_MARK, _FREE_BITS = 0x5D15, 47
_LINE = re.compile(rf"^{PREFIX}room (\d+): decode rank (\d+) heard from (\d+)$", re.MULTILINE)


def new_room(group: int = 0, groups: int = 1) -> int:
    """A bootstrap room for one request of a probe: 62 bits, the upper 15 of which say whose it is.

    A prefill with several DP groups gives a request to group `room % groups` (SGLang's `follow_bootstrap_room`).
    """
    room = _MARK << _FREE_BITS | groups + secrets.randbelow((1 << _FREE_BITS) - groups)
    return room - (room - group) % groups


def is_probe(room: int) -> bool:
    """Whether a room is a probe's."""
    return room >> _FREE_BITS == _MARK


def heard(room: int, decode_rank: int, sender: int) -> str:
    """The line for one completion. sender: the key by which decode tells prefill ranks apart."""
    return f"{PREFIX}room {room}: decode rank {decode_rank} heard from {sender}"


def read(log: str, room: int) -> dict[int, tuple[int, ...]] | None:
    """Decode rank -> the senders that it heard from, in order, repeats included; None where no witness listens."""
    if LISTENS not in log:
        return None
    found: dict[int, list[int]] = defaultdict(list)
    for of, rank, sender in _LINE.findall(log):
        if int(of) == room:
            found[int(rank)].append(int(sender))
    return {rank: tuple(senders) for rank, senders in found.items()}
