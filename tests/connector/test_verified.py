"""What was observed when every release's own code was executed, against what disagg says of it."""

import pytest
from rich.console import Console

from disagg_cli.connector.case import Case, Outcome
from disagg_cli.connector.classes import CLASSES
from disagg_cli.connector.conformance.verify import expect, grid, judged
from disagg_cli.connector.releases import choose_release, find_release, known_releases
from disagg_cli.connector.repairs import judge_repaired, loads
from disagg_cli.connector.verdict import judge_case
from disagg_cli.connector.verified import verified_releases
from disagg_cli.console.releases_view import releases_view

RELEASES = [release.name for release in known_releases()]
EXECUTED = verified_releases()


def test_every_known_release_was_executed():
    assert list(EXECUTED) == RELEASES
    assert all(one.stock for one in EXECUTED.values())


@pytest.mark.parametrize("release", RELEASES)
def test_the_overlay_was_executed_wherever_there_is_a_door_for_it(release):
    assert (EXECUTED[release].overlay is not None) is loads(find_release(release))


@pytest.mark.parametrize("release", RELEASES)
def test_each_class_did_what_is_said_of_it(release):
    """A class of which nothing is said (`unsupported`) is not run."""
    said = {one.letter: judge_case(find_release(release), one.case).outcome for one in CLASSES}
    assert EXECUTED[release].stock.classes == {
        letter: outcome for letter, outcome in said.items() if outcome is not Outcome.UNSUPPORTED
    }


@pytest.mark.parametrize("release", [release for release in RELEASES if loads(find_release(release))])
def test_with_the_overlay_each_class_did_what_is_said_of_it(release):
    said = {one.letter: judge_repaired(find_release(release), one.case) for one in CLASSES}
    assert EXECUTED[release].overlay.classes == {letter: one.outcome for letter, one in said.items() if one}


@pytest.mark.parametrize("release", RELEASES)
def test_pools_did_what_is_said_of_them(release):
    choice = choose_release(release)
    mixed = [check for check in grid() if len(check.pools) > 1]
    said = [expect(check, choice).outcome for check in judged(mixed, choice)]
    assert list(EXECUTED[release].stock.pools.values()) == said
    if EXECUTED[release].overlay:
        said = [expect(check, choice, overlay=True).outcome for check in judged(mixed, choice, overlay=True)]
        assert list(EXECUTED[release].overlay.pools.values()) == said


@pytest.mark.parametrize("release", RELEASES)
def test_every_plan_agreed_and_none_costs_more_calls_with_the_overlay(release):
    runs = [run for run in (EXECUTED[release].stock, EXECUTED[release].overlay) if run]
    assert {(run.plans - run.agree, run.more_calls) for run in runs} == {(0, 0)}


@pytest.mark.parametrize("release", ["0.5.6", "0.5.11", "0.5.23"])
def test_every_plan_of_the_grid_was_run(release):
    choice, executed = choose_release(release), EXECUTED[release]
    assert executed.stock.plans == len(judged(grid(), choice))
    assert executed.overlay is None or executed.overlay.plans == len(judged(grid(), choice, overlay=True))


def test_the_overlay_makes_every_plan_right_from_0_5_13_on():
    """All with K and V per head of one size, and stages whose layers can be paired."""
    repaired = {"F", "G", "H"}
    for release in RELEASES[RELEASES.index("0.5.13") :]:
        assert {EXECUTED[release].overlay.classes[letter] for letter in repaired} == {Outcome.OK}
        assert set(EXECUTED[release].overlay.pools.values()) == {Outcome.OK}


@pytest.mark.parametrize("release", ["0.5.11", "0.5.12"])
def test_with_the_overlay_the_two_that_count_wrongly_count_right(release):
    """Class B is the case of sglang #22145: TP4 -> TP1 with 8 KV heads."""
    assert EXECUTED[release].stock.classes["B"] is Outcome.HANG
    assert {EXECUTED[release].overlay.classes[letter] for letter in "ABCEFGH"} == {Outcome.OK}


def test_what_the_overlay_cannot_repair_names_the_release_that_can():
    """Prefill stages on 0.5.12: the tag has no room for them."""
    made = Case(prefill_tp=4, decode_tp=2, kv_heads=8, pp=2, stage_layers=(4, 4))
    assert EXECUTED["0.5.12"].overlay.classes["Q"] is Outcome.HANG
    assert judge_case(find_release("0.5.12"), made).minimum_release == "0.5.17"


def test_the_table_marks_what_was_executed_and_what_the_overlay_repairs():
    rows = [(release, {one: judge_case(release, one.case) for one in CLASSES}) for release in known_releases()]
    console = Console(width=80, record=True)
    console.print(releases_view(rows, EXECUTED))
    lines = {line.split()[0]: line for line in console.export_text(clear=False).splitlines() if line.strip()}
    assert lines["0.5.22"].split()[8] == "a+"
    assert lines["SGLang"].split()[1:] == [one.letter for one in CLASSES]
