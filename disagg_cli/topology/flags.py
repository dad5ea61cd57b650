"""Which flags and environment variables an SGLang release knows. Facts in flags.yaml, made by flag_lists.py."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from packaging.version import Version

from disagg_cli.facts import read_facts

KINDS = ("switches", "values", "ints", "floats", "lists", "optional", "deprecated", "environment")
LONGEST_WORD = 64
"""Nobody misspells a longer one, and likeness takes time that grows with length."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FlagList:
    """One release's flags, without their dashes. switches take no value, values do; environment are its SGLANG_ names.

    Of the values, ints and floats take a number, lists several words, optional ones may stand alone, and choices have
    the words that they accept. exact: whether the list was read from this very release, and not from the nearest known
    one below it.
    """

    release: str
    exact: bool
    switches: frozenset[str]
    values: frozenset[str]
    ints: frozenset[str] = frozenset()
    floats: frozenset[str] = frozenset()
    lists: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset()
    deprecated: frozenset[str] = frozenset()
    environment: frozenset[str] = frozenset()
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    removed: Mapping[str, str] = field(default_factory=dict)

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
    if len(word) > LONGEST_WORD:
        return None
    return next(iter(difflib.get_close_matches(word, sorted(words), n=1, cutoff=0.75)), None)


def flags_of(release: str) -> FlagList | None:
    """The flags of a release, or of the nearest known one below it; None where all known ones are above."""
    wanted = Version(Version(release).public)
    below = [known for known in _lists() if Version(known.release) <= wanted]
    return replace(below[-1], exact=Version(below[-1].release) == wanted) if below else None


def installed_flags(version: str, folder: Path) -> FlagList | None:
    """The flags of an installed SGLang that flags.yaml does not list, read from its source; None where it does.

    folder holds `sglang/`. environment stays empty: not known.
    """
    listed = flags_of(version)
    if listed is not None and listed.exact:
        return None
    from disagg_cli.topology.flag_lists import read_installed

    found = read_installed(folder)
    if not found.values:
        return None
    gone = every_flag() - found.switches - found.values
    return _list(
        version,
        {kind: frozenset(getattr(found, kind)) for kind in KINDS},
        {flag: tuple(words) for flag, words in found.choices.items()},
        dict.fromkeys(gone, f"{version} or before"),
    )


def _list(
    release: str,
    kinds: Mapping[str, frozenset[str]],
    choices: Mapping[str, tuple[str, ...]],
    removed: Mapping[str, str],
) -> FlagList:
    return FlagList(
        release=release,
        exact=True,
        switches=kinds["switches"],
        values=kinds["values"],
        ints=kinds["ints"],
        floats=kinds["floats"],
        lists=kinds["lists"],
        optional=kinds["optional"],
        deprecated=kinds["deprecated"],
        environment=kinds["environment"],
        choices=choices,
        removed=removed,
    )


@cache
def every_flag() -> frozenset[str]:
    """The flags of all known releases together."""
    return frozenset().union(*(known.known for known in _lists()))


@cache
def router_flags() -> FlagList:
    """The flags of the one router release that is known."""
    fact = _facts()["router"]
    kinds = {kind: frozenset(fact.get(kind, "").split()) for kind in KINDS}
    return _list(fact["release"], kinds, _choices(fact["choices"]), {})


@cache
def _facts() -> Any:
    return read_facts(Path(__file__).with_name("flags.yaml"))


def _choices(fact: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    return {flag: tuple(words.split()) for flag, words in fact.items()}


@cache
def _lists() -> tuple[FlagList, ...]:
    """Every known release's list, oldest first."""
    now: dict[str, set[str]] = {kind: set() for kind in KINDS}
    choices: dict[str, tuple[str, ...]] = {}
    removed: dict[str, str] = {}
    lists = []
    for entry in _facts()["sglang"]:
        for kind in KINDS:
            now[kind] |= set(entry.get(f"+{kind}", "").split())
            now[kind] -= set(entry.get(f"-{kind}", "").split())
        choices |= _choices(entry.get("+choices", {}))
        choices = {flag: words for flag, words in choices.items() if flag not in entry.get("-choices", "").split()}
        gone = {flag for kind in ("switches", "values") for flag in entry.get(f"-{kind}", "").split()}
        removed |= dict.fromkeys(gone, entry["release"])
        removed = {flag: release for flag, release in removed.items() if flag not in now["switches"] | now["values"]}
        kinds = {kind: frozenset(now[kind]) for kind in KINDS}
        lists.append(_list(entry["release"], kinds, choices, dict(removed)))
    return tuple(lists)
