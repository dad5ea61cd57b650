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
from disagg_cli.facts import read_facts


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
    stage_pairing: str
    decode_stages: bool
    ragged_stages: str
    hybrid_offset: str
    latent_hybrids: str
    runs: bool
    components: str


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
        return self.approximate and self.release is known_releases()[-1]

    @property
    def approximate(self) -> bool:
        """Whether this release is not itself known, and is judged as the nearest known one below it."""
        return Version(Version(self.sglang).public) != self.release.version


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

    Raises UsageError where the text is no version, or is older than all known ones.
    """
    newest = known_releases()[-1]
    if asked is not None:
        return Choice(sglang=asked, release=find_release(asked), origin=Origin.ASKED)
    if installed is not None:
        return Choice(sglang=installed, release=find_release(installed), origin=Origin.INSTALLED)
    return Choice(sglang=newest.name, release=newest, origin=Origin.NEWEST)


def find_release(text: str) -> Release:
    """Find the known release for a version: itself, or the nearest known below it.

    A post, candidate or development build between two releases, and anything newer than all, is thus judged as its
    predecessor; `Choice.approximate` says so. A local part (`+cu130`) is ignored. Raises UsageError as
    `choose_release`.
    """
    try:
        version = Version(Version(text).public)
    except InvalidVersion:
        raise UsageError(f"{text!r} is no SGLang version", fix=f"for example {known_releases()[-1].name}") from None
    below = [release for release in known_releases() if release.version <= version]
    if not below:
        raise UsageError(
            f"SGLang {text} is older than {known_releases()[0].name}, the oldest release that disagg knows",
            fix=f"install SGLang {known_releases()[-1].name}",
        )
    return below[-1]
