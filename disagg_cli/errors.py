"""Every failure a user can meet, with the exit code that it ends in.

DisaggError                 1  a bug in disagg, or something nobody foresaw
├── UsageError              2  a command line or a YAML file that is wrong
├── PlanRefused             3  the plan or a check says no
├── LaunchFailed            4  a process did not start, or died
├── ProbeFailed             5  KV did not move, or moved wrong
├── EvalFailed              6  the eval's gate failed
├── EvalUndecided           7  the eval is inconclusive, or requests failed in transport
└── Interrupted           130  Ctrl-C or SIGTERM
"""

from collections.abc import Mapping
from typing import Any, ClassVar


class DisaggError(Exception):
    """A failure with what happened, where, and what to do about it."""

    exit_code: ClassVar[int] = 1

    def __init__(
        self, what: str, *, where: str | None = None, fix: str | None = None, details: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.fix = fix
        self.details = details or {}
        """More for programs: keys of the error's JSON document."""


class UsageError(DisaggError):
    """A command line or a YAML file that is wrong. Nothing was started."""

    exit_code = 2


class PlanRefused(DisaggError):
    """The plan or a check says no. Nothing was started."""

    exit_code = 3


class LaunchFailed(DisaggError):
    """A process did not start, did not become healthy, or died."""

    exit_code = 4


class ProbeFailed(DisaggError):
    """A prefill/decode pair did not move KV, or moved it wrong."""

    exit_code = 5


class EvalFailed(DisaggError):
    """The eval's score is below its gate."""

    exit_code = 6


class EvalUndecided(DisaggError):
    """The eval cannot judge: too few questions, or requests that failed in transport."""

    exit_code = 7


class Interrupted(DisaggError):
    """The user or the system asked for a stop before the work was done."""

    exit_code = 130


def kind_of(exit_code: int | None) -> type[DisaggError]:
    """The kind of error that ends in this exit code; LaunchFailed for one that none of them has."""
    kinds: list[type[DisaggError]] = [DisaggError, *DisaggError.__subclasses__()]
    return {kind.exit_code: kind for kind in kinds}.get(exit_code or 0, LaunchFailed)
