"""A finding: something a rule says about a topology. The catalogue holds what every finding of a code shares."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from disagg_cli.facts import read_facts

CATALOGUES = ("catalogue.yaml", "catalogue_topology.yaml")
"""DSG1xx: plan and connector; from DSG201 on: everything else that a topology says."""


class Severity(StrEnum):
    """How much a finding weighs: an error stops a launch, a warning and a note do not."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """What the catalogue says about a code: its page, for `disagg explain CODE`."""

    code: str
    name: str
    title: str
    severity: Severity
    why: str
    fix: str
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One complaint about one place (`where`: `prefill`, `decode[1].tp`), with what to do about it."""

    code: str
    severity: Severity
    message: str
    fix: str
    source: str
    where: str

    def document(self) -> dict[str, str]:
        """The finding as JSON shows it."""
        return {
            "code": self.code,
            "severity": self.severity.value,
            "message": self.message,
            "fix": self.fix,
            "source": self.source,
            "where": self.where,
        }


@cache
def catalogue() -> Mapping[str, Entry]:
    """Every code with its entry, in order of code."""
    facts: dict[str, Mapping[str, Any]] = {}
    for name in CATALOGUES:
        facts |= read_facts(Path(__file__).with_name(name))
    if without := [code for code, fact in facts.items() if not str(fact.get("source") or "").strip()]:
        raise ValueError(f"rules without a source: {', '.join(without)}")
    return MappingProxyType(
        {code: Entry(**{**fact, "code": code, "severity": Severity(fact["severity"])}) for code, fact in facts.items()}
    )


def finding(code: str, message: str, *, where: str, fix: str | None = None) -> Finding:
    """Make a finding of a known code; the catalogue gives severity, source, and the fix where none is better."""
    entry = catalogue()[code]
    return Finding(
        code=code,
        severity=entry.severity,
        message=printable(message),
        fix=printable(fix or entry.fix),
        source=entry.source,
        where=printable(where),
    )


LONGEST = 2000
"""Characters of one sentence: beyond that, nobody reads what a hostile file holds."""


def printable(text: str) -> str:
    """The text on one line, without what would steer a terminal or turn its direction of writing."""
    shown = text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return shown if len(shown) <= LONGEST else f"{shown[:LONGEST]}..."
