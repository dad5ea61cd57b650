"""Which flags and environment variables an SGLang release knows. Facts in flags.yaml, made by flag_lists.py."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from packaging.version import Version

from disagg_cli.kv.facts import read_facts

KINDS = ("switches", "values", "deprecated", "environment")


@dataclass(frozen=True, kw_only=True, slots=True)
class FlagList:
    """One release's flags, without their dashes. switches take no value, values do; environment are its SGLANG_ names.

    exact: whether the list was read from this very release, and not from the nearest known one below it.
    """

    release: str
    exact: bool
    switches: frozenset[str]
    values: frozenset[str]
    deprecated: frozenset[str]
    environment: frozenset[str]
    removed: Mapping[str, str]

    @property
    def known(self) -> frozenset[str]:
        """Every flag."""
        return self.switches | self.values

    def spelt_out(self, flag: str) -> tuple[str, ...]:
        """The flags that a spelling stands for: itself, or those that it abbreviates, as argparse takes them."""
        if flag in self.known:
            return (flag,)
        return tuple(sorted(known for known in self.known if known.startswith(flag)))

    def nearest(self, flag: str) -> str | None:
        """The flag that a misspelt one most likely means."""
        return nearest(flag, self.known)


@cache
def nearest(word: str, words: frozenset[str] | tuple[str, ...]) -> str | None:
    """The word most like this one, or None where none is much like it."""
    return next(iter(difflib.get_close_matches(word, sorted(words), n=1, cutoff=0.75)), None)


def flags_of(release: str) -> FlagList | None:
    """The flags of a release, or of the nearest known one below it; None where all known ones are above."""
    wanted = Version(Version(release).public)
    below = [known for known in _lists() if Version(known.release) <= wanted]
    if not below:
        return None
    found = below[-1]
    return FlagList(
        release=found.release,
        exact=Version(found.release) == wanted,
        switches=found.switches,
        values=found.values,
        deprecated=found.deprecated,
        environment=found.environment,
        removed=found.removed,
    )


def installed_flags(version: str, folder: Path) -> FlagList | None:
    """The flags of an installed SGLang that flags.yaml does not list, read from its source; None where it does.

    folder holds `sglang/`. environment stays empty: not known.
    """
    listed = flags_of(version)
    if listed is not None and listed.exact:
        return None
    from disagg_cli.engine.flag_lists import read_installed

    found = read_installed(folder)
    if not found.values:
        return None
    known = found.switches | found.values
    return FlagList(
        release=version,
        exact=True,
        switches=frozenset(found.switches),
        values=frozenset(found.values),
        deprecated=frozenset(found.deprecated),
        environment=frozenset(),
        removed=dict.fromkeys(every_flag() - known, f"{version} or before"),
    )


@cache
def every_flag() -> frozenset[str]:
    """The flags of all known releases together."""
    return frozenset().union(*(known.known for known in _lists()))


@cache
def router_flags() -> tuple[str, frozenset[str]]:
    """The router's release, and the flags that it knows."""
    fact = _facts()["router"]
    return fact["release"], frozenset(fact["flags"].split())


@cache
def _facts() -> Any:
    return read_facts(Path(__file__).with_name("flags.yaml"))


@cache
def _lists() -> tuple[FlagList, ...]:
    """Every known release's list, oldest first."""
    now: dict[str, set[str]] = {kind: set() for kind in KINDS}
    removed: dict[str, str] = {}
    lists = []
    for entry in _facts()["sglang"]:
        for kind in KINDS:
            now[kind] |= set(entry.get(f"+{kind}", "").split())
            now[kind] -= set(entry.get(f"-{kind}", "").split())
        gone = {flag for kind in ("switches", "values") for flag in entry.get(f"-{kind}", "").split()}
        removed |= dict.fromkeys(gone, entry["release"])
        removed = {flag: release for flag, release in removed.items() if flag not in now["switches"] | now["values"]}
        kinds = {kind: frozenset(now[kind]) for kind in KINDS}
        lists.append(FlagList(release=entry["release"], exact=True, removed=dict(removed), **kinds))
    return tuple(lists)
