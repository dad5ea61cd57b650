"""The releases as data, and which of them a version means."""

import pytest
from packaging.version import Version

from disagg_cli.connector.releases import Origin, choose_release, find_release, installed_release, known_releases
from disagg_cli.errors import UsageError


def test_releases_stand_in_order_of_version_and_date():
    versions = [Version(release.name) for release in known_releases()]
    dates = [release.date for release in known_releases()]
    assert versions == sorted(set(versions))
    assert dates == sorted(dates)


def test_they_reach_from_0_5_6_to_0_5_23():
    assert (known_releases()[0].name, known_releases()[-1].name) == ("0.5.6", "0.5.23")


@pytest.mark.parametrize("release", known_releases(), ids=lambda release: release.name)
def test_each_names_its_source(release):
    assert release.source


def test_a_release_keeps_what_it_does_not_change():
    assert find_release("0.5.14").connector == find_release("0.5.13").connector


@pytest.mark.parametrize("text", ["0.5.12.post1", "v0.5.12.post1", "0.5.12.post1+cu130"])
def test_a_version_finds_its_release(text):
    assert find_release(text).name == "0.5.12.post1"


@pytest.mark.parametrize("text", ["0.5.24", "0.6.0rc1", "1.0"])
def test_a_newer_release_is_judged_as_the_newest_known(text):
    choice = choose_release(text)
    assert (choice.release.name, choice.sglang, choice.newer_than_known) == ("0.5.23", text, True)


def test_a_known_release_is_not_newer():
    choice = choose_release("0.5.23+cu130")
    assert (choice.newer_than_known, choice.approximate) == (False, False)


@pytest.mark.parametrize(
    ("text", "judged_as"), [("0.5.10rc0", "0.5.9"), ("0.5.18.post4", "0.5.18"), ("0.5.22.dev3+g1234", "0.5.21")]
)
def test_a_build_between_releases_is_judged_as_the_one_below(text, judged_as):
    choice = choose_release(installed=text)
    assert (choice.release.name, choice.approximate, choice.newer_than_known) == (judged_as, True, False)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("latest", "'latest' is no SGLang version"),
        ("0.5.5", "older than 0.5.6"),
        ("0.5.6rc1", "older than 0.5.6"),
    ],
)
def test_other_versions_are_usage_errors(text, complaint):
    with pytest.raises(UsageError, match=complaint):
        find_release(text)


def test_the_release_asked_for_comes_first():
    choice = choose_release("0.5.11", installed="0.5.22")
    assert (choice.release.name, choice.origin) == ("0.5.11", Origin.ASKED)


def test_then_the_installed_one():
    choice = choose_release(installed="0.5.22")
    assert (choice.release.name, choice.origin) == ("0.5.22", Origin.INSTALLED)


def test_then_the_newest_known():
    assert choose_release().origin is Origin.NEWEST


def test_the_installed_release_is_a_version_or_nothing():
    installed = installed_release()
    assert installed is None or Version(installed)
