"""What every known release did when its own code was executed, as data (verified.yaml).

Written by `make verify-releases`; a test holds it against what `verdict` and `repairs` say.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from disagg_cli.connector.case import Outcome
from disagg_cli.facts import read_facts

PATH = Path(__file__).with_name("verified.yaml")


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One run of a release's connector over a grid of plans.

    `agree` counts plans that did what disagg says of the release, `right` those in which all KV arrived and was waited
    for. `classes` has the outcome of each class's example by its letter, `pools` that of decode pools of different TP.
    """

    plans: int
    agree: int
    right: int
    classes: Mapping[str, Outcome]
    pools: Mapping[str, Outcome]
    more_calls: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Verified:
    """A release that was executed: from which wheel, when, and what came of it; None where it could not be run."""

    release: str
    wheel: str
    sha256: str
    executed: str
    stock: Run | None
    overlay: Run | None


@cache
def verified_releases() -> Mapping[str, Verified]:
    """The releases that were executed, by name."""
    entries = [_verified(entry) for entry in read_facts(PATH)]
    return {entry.release: entry for entry in entries}


def _verified(entry: Mapping[str, Any]) -> Verified:
    runs = {how: _run(entry[how]) if entry[how] else None for how in ("stock", "overlay")}
    return Verified(**{**entry, **runs})


def _run(entry: Mapping[str, Any]) -> Run:
    outcomes = {name: {plan: Outcome(seen) for plan, seen in entry[name].items()} for name in ("classes", "pools")}
    return Run(**{**entry, **outcomes})
