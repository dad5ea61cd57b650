"""What a host says of itself as a process there ends: a line in the log, as nothing else of that host is known here."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Literal

Sign = Literal["oom_killer", "shm_full", "disk_full"]
"""What ends processes and leaves nothing in their logs."""

WORDS: Mapping[Sign, str] = MappingProxyType(
    {
        "oom_killer": "the kernel's OOM killer had just struck",
        "shm_full": "/dev/shm was full",
        "disk_full": "the disk with its log was full",
    }
)
BEGIN = "disagg: as this ended on "


def last_word(host: str, signs: Iterable[Sign]) -> str:
    """The line; empty where there is nothing to say."""
    said = " and ".join(WORDS[sign] for sign in signs)
    return f"{BEGIN}{host}, {said}\n" if said else ""


def told(text: str) -> frozenset[Sign]:
    """What such lines in a log say."""
    lines = [line for line in text.splitlines() if line.startswith(BEGIN)]
    return frozenset(sign for sign, words in WORDS.items() if any(words in line for line in lines))
