"""What a rehearsal shares with the topology that it stands for, and what not, in sentences. Pure."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

Kind = Literal["as written", "reduced", "replaced", "not covered"]
KINDS: tuple[Kind, ...] = ("as written", "reduced", "replaced", "not covered")


@dataclass(frozen=True, kw_only=True, slots=True)
class Note:
    """One thing that is rehearsed as it was written, smaller, in another form, or not at all. why: where it is not."""

    kind: Kind
    what: str
    why: str = ""

    def document(self) -> dict[str, Any]:
        """The note as JSON."""
        return asdict(self)


def grouped(notes: Iterable[Note]) -> list[Note]:
    """The notes by kind, those of one reason in one."""
    found: dict[tuple[Kind, str], list[str]] = {}
    for note in notes:
        whats = found.setdefault((note.kind, note.why), [])
        if note.what not in whats:
            whats.append(note.what)
    merged = [Note(kind=kind, why=why, what=", ".join(whats)) for (kind, why), whats in found.items() if why]
    plain = [Note(kind=kind, what=what) for (kind, why), whats in found.items() if not why for what in whats]
    return sorted([*plain, *merged], key=lambda note: KINDS.index(note.kind))
