"""SGLang releases as data: what each one's NIXL connector does, and which one a user means."""

import importlib.metadata
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from disagg_cli.errors import UsageError
from disagg_cli.kv.facts import read_facts


@dataclass(frozen=True, kw_only=True, slots=True)
class Connector:
    """One release's connector; the fields are explained at the head of releases.yaml."""

    kv_key: str
    state_key: str
    state_sent: bool
    head_maths: str
    replicated_decode: bool
    descriptors: str
    zero_groups: str
    dense_finishes: bool
    swa_slices: str
    mamba_slices: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Release:
    """An SGLang release that disagg knows."""

    name: str
    date: str
    connector: Connector
    source: str

    @property
    def version(self) -> Version:
        """The release as something that can be ordered."""
        return Version(self.name)


class Origin(StrEnum):
    """Why a release is the one to judge."""

    ASKED = "asked for"
    INSTALLED = "installed"
    NEWEST = "newest known; none is installed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """The release that a user means, and the known release that it is judged as."""

    sglang: str
    release: Release
    origin: Origin

    @property
    def newer_than_known(self) -> bool:
        """Whether this release came after the newest that disagg knows, and is judged as that one."""
        return Version(Version(self.sglang).public) > self.release.version


@cache
def known_releases() -> tuple[Release, ...]:
    """Every known release, oldest first."""
    connector: dict[str, Any] = {}
    releases = []
    for entry in read_facts(Path(__file__).with_name("releases.yaml")):
        connector |= entry.get("changes", {})
        releases.append(_release(entry, connector))
    return tuple(releases)


def _release(entry: Mapping[str, Any], connector: Mapping[str, Any]) -> Release:
    return Release(
        name=str(entry["release"]),
        date=str(entry["date"]),
        connector=Connector(**connector),
        source=entry["source"],
    )


def installed_release() -> str | None:
    """The version of the SGLang installed beside disagg, read without importing it; None if there is none."""
    try:
        return importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return None


def choose_release(asked: str | None = None, *, installed: str | None = None) -> Choice:
    """Pick the release to judge: the one asked for, else the installed one, else the newest known.

    Raises UsageError where the text is no version, or names a release between or before the known ones.
    """
    newest = known_releases()[-1]
    if asked is not None:
        return Choice(sglang=asked, release=find_release(asked), origin=Origin.ASKED)
    if installed is not None:
        return Choice(sglang=installed, release=find_release(installed), origin=Origin.INSTALLED)
    return Choice(sglang=newest.name, release=newest, origin=Origin.NEWEST)


def find_release(text: str) -> Release:
    """Find the known release for a version: itself, or the newest known for a later one.

    A local part (`+cu130`) is ignored. Raises UsageError as `choose_release`.
    """
    try:
        version = Version(Version(text).public)
    except InvalidVersion:
        raise UsageError(f"{text!r} is no SGLang version", fix=f"for example {known_releases()[-1].name}") from None
    for release in reversed(known_releases()):
        if version == release.version:
            return release
        if version > release.version:
            break
    else:
        raise UsageError(
            f"SGLang {text} is older than {known_releases()[0].name}, the oldest release that disagg knows",
            fix=f"install SGLang {known_releases()[-1].name}",
        )
    if release is known_releases()[-1]:
        return release
    raise UsageError(
        f"SGLang {text} is not a release that disagg knows",
        fix=f"the nearest before it is {release.name}: judge it as that one with --sglang {release.name}",
    )
