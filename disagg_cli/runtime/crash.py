"""Why a process died: how it ended, its last lines, and the cause that these, or the machine, tell. Pure.

"Unknown" is an answer: a cause is named only where the log has the line of an error that ends a process by itself, or
where the machine has counted what happened (causes.yaml, each with its source).
"""

import re
import signal
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from disagg_cli.executors.last_word import Sign
from disagg_cli.facts import read_facts
from disagg_cli.runtime.logs import CRASH, indented, last_lines

FROM_OUTSIDE = frozenset({-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP})
"""Ends that leave nothing in a log: whatever stands there is about something else."""

_OF_A_RANK = re.compile(r"^.*Subprocess \S+ \(pid=\d+\) crashed with exit code (-?\d+)", re.MULTILINE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cause:
    """An entry of causes.yaml."""

    name: str
    what: str
    fix: str
    source: str
    lines: tuple[re.Pattern[str], ...] = ()
    sign: Sign | None = None
    finding: str | None = None
    weak: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """What is left of a process that has died. text: the end of its log; signs: what its machine says."""

    text: str
    exit_code: int | None
    signs: frozenset[Sign] = frozenset()

    @property
    def codes(self) -> set[int]:
        """How the process ended, and how its ranks did as far as SGLang says."""
        told = {int(code) for code in _OF_A_RANK.findall(self.text)}
        return told | ({self.exit_code} if self.exit_code is not None else set())

    @property
    def from_outside(self) -> bool:
        """Whether somebody else ended it. SGLang ends itself by SIGKILL too, once a rank has failed, and says so."""
        if CRASH.search(self.text.encode()) and not _OF_A_RANK.search(self.text):
            return False
        return bool(self.codes) and self.codes <= FROM_OUTSIDE


@dataclass(frozen=True, kw_only=True, slots=True)
class Crash:
    """A process that died. phase: what it was doing, for `after_s` seconds. cause: None where it is unknown.

    line: the line of the log that tells the cause.
    """

    process: str
    host: str
    pid: int
    how: str
    exit_code: int | None
    phase: str
    after_s: float
    last_lines: tuple[str, ...]
    log: str
    cause: Cause | None = None
    line: str = ""

    def text(self) -> str:
        """The report as people read it."""
        said = f"\ncause: {self.cause.what}" if self.cause else "\ncause: unknown"
        quoted = indented("\n".join(self.last_lines) or "(the log is empty)")
        line = f"\n{indented(self.line)}" if self.line and self.line not in self.last_lines else ""
        return f"{self.process} died: {self.how}{said}{line}\n{quoted}"

    @property
    def fix(self) -> str | None:
        """What to do about the cause."""
        if self.cause is None:
            return None
        return self.cause.fix + (f"; see `disagg explain {self.cause.finding}`" if self.cause.finding else "")

    def document(self) -> dict[str, Any]:
        """The report as JSON."""
        cause = self.cause and {
            "name": self.cause.name,
            "what": self.cause.what,
            "fix": self.cause.fix,
            "finding": self.cause.finding,
            "source": self.cause.source,
            "line": self.line,
        }
        return asdict(self) | {"signal": signal_name(self.exit_code), "cause": cause, "last_lines": [*self.last_lines]}


@cache
def causes() -> Mapping[str, Cause]:
    """All known causes by name."""
    facts: dict[str, dict[str, Any]] = read_facts(Path(__file__).with_name("causes.yaml"))
    return MappingProxyType(
        {
            name: Cause(
                **fact | {"name": name, "lines": tuple(re.compile(one, re.MULTILINE) for one in fact.get("lines", ()))}
            )
            for name, fact in facts.items()
        }
    )


def cause_of(evidence: Evidence) -> tuple[Cause | None, str]:
    """What a process died of, and the line of its log that says so."""
    counted = [cause for cause in causes().values() if cause.sign in evidence.signs]
    surest = [cause for cause in counted if not cause.weak]
    if surest:
        return surest[0], ""
    found = [] if evidence.from_outside else _in_log(evidence.text)
    if not found:
        return (counted[0] if counted else None), ""
    _, place, cause = max(found, key=lambda one: one[:2])
    begin = evidence.text.rfind("\n", 0, place) + 1
    return cause, "\n".join(last_lines(evidence.text[begin:].partition("\n")[0], 1))


def _in_log(text: str) -> list[tuple[bool, int, Cause]]:
    """Every line that tells a cause: whether it is a strong one, and where its last line stands."""
    return [
        (not cause.weak, match.end() - 1, cause)
        for cause in causes().values()
        for pattern in cause.lines
        for match in pattern.finditer(text)
    ]


def signal_name(code: int | None) -> str | None:
    """The signal that ended a process, by name; None for one that ended otherwise."""
    if code is None or code >= 0:
        return None
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def ending(code: int) -> str:
    """How a process ended, in words."""
    return f"killed by {signal_name(code)}" if code < 0 else f"exit code {code}"
