"""Verdicts case by case: the reason in words, and the first release that is right."""

import pytest

from disagg_cli.connector.case import Outcome
from disagg_cli.connector.releases import find_release, known_releases
from disagg_cli.connector.verdict import judge, judge_pools
from disagg_cli.kv.layout import LayoutKind


def on(release, *sizes, **rest):
    return judge(find_release(release), *sizes, **rest)


def test_the_seeds_case_is_right_today():
    verdict = on("0.5.23", 4, 1, 8)
    assert verdict.ok
    assert verdict.minimum_release == "0.5.12.post1"


def test_the_seeds_case_hung_because_one_key_was_counted_of_four():
    verdict = on("0.5.11", 4, 1, 8)
    assert verdict.outcome is Outcome.HANG
    assert "waits for 4 senders" in verdict.reason
    assert "told apart by pp_rank only and 1 can be counted" in verdict.reason


def test_modulo_names_the_decode_ranks_that_get_wrong_heads():
    verdict = on("0.5.11", 1, 4, 2)
    assert verdict.outcome is Outcome.WRONG_BYTES
    assert "wrong heads on decode rank(s) 1, 2 (rank 1 gets head 1, not 0)" in verdict.reason


def test_misplaced_heads_name_the_offset():
    assert "prefill rank 3's heads at offset 6 of a block of 4" in on("0.5.6", 4, 2, 8).reason


@pytest.mark.parametrize(
    ("sizes", "minimum"),
    [
        ((8, 8, 8), "0.5.12.post1"),
        ((1, 4, 8), "0.5.12.post1"),
        ((1, 4, 2), "0.5.17"),
        ((2, 4, 2), "0.5.17"),
        ((4, 8, 2), None),
    ],
)
def test_minimum_release_is_where_all_later_ones_are_right(sizes, minimum):
    assert on("0.5.23", *sizes).minimum_release == minimum


@pytest.mark.parametrize(
    ("kind", "sizes", "minimum"),
    [
        (LayoutKind.SWA, (4, 2, 8), "0.5.22"),
        (LayoutKind.HYBRID, (4, 2, 8), "0.5.16"),
        (LayoutKind.HYBRID, (2, 2, 2), "0.5.9"),
        (LayoutKind.MLA, (8, 1, 1), "0.5.12.post1"),
    ],
)
def test_minimum_release_by_kind(kind, sizes, minimum):
    assert on("0.5.23", *sizes, kind=kind).minimum_release == minimum


@pytest.mark.parametrize(
    ("release", "kind", "outcome"),
    [
        ("0.5.10", LayoutKind.HYBRID, "runtime_error"),
        ("0.5.11", LayoutKind.HYBRID, "wrong_bytes"),
        ("0.5.16", LayoutKind.HYBRID, "ok"),
        ("0.5.21", LayoutKind.SWA, "runtime_error"),
        ("0.5.22", LayoutKind.SWA, "ok"),
    ],
)
def test_state_between_different_sizes(release, kind, outcome):
    assert on(release, 2, 4, 8, kind=kind).outcome == outcome


def test_hybrid_models_finish_on_0_5_12_where_dense_ones_hang():
    assert on("0.5.12", 4, 4, 8, kind=LayoutKind.HYBRID).ok


def test_windows_with_prefill_stages_hang_on_0_5_11():
    """KV is told apart by stage, but state by TP rank."""
    assert on("0.5.11", 4, 4, 8, pp=2, kind=LayoutKind.SWA).outcome is Outcome.HANG


@pytest.mark.parametrize("sizes", [(2, 3, 6), (3, 2, 6), (4, 6, 12), (3, 1, 8)])
def test_sizes_that_do_not_divide_or_load_are_unsupported_everywhere(sizes):
    assert {judge(release, *sizes).outcome for release in known_releases()} == {Outcome.UNSUPPORTED}


@pytest.mark.parametrize("sizes", [(3, 1, 3), (6, 2, 6), (1, 6, 6), (6, 3, 12)])
def test_ratios_need_not_be_powers_of_two(sizes):
    assert on("0.5.23", *sizes).ok


def test_decode_stages_are_one_or_the_prefills():
    outcomes = [on("0.5.23", 4, 2, 8, pp=4, decode_pp=stages).outcome for stages in (1, 2, 4)]
    assert outcomes == ["ok", "unsupported", "ok"]


def test_equal_stages_need_no_more_senders():
    assert on("0.5.16", 2, 2, 8, pp=2, decode_pp=2).ok


@pytest.mark.parametrize(
    ("release", "p", "pools", "total", "ok"),
    [
        ("0.5.23", 2, (1, 4), 4, False),  # seen on 0.5.23 with real servers: NIXL_ERR_INVALID_PARAM
        ("0.5.13", 2, (4, 8), 8, False),
        ("0.5.12.post1", 2, (4, 8), 8, True),
        ("0.5.23", 4, (1, 2), 8, True),  # prefill wider: every pool takes whole blocks
        ("0.5.23", 2, (2, 4), 8, True),  # equal sizes use another list
        ("0.5.23", 2, (4, 8), 4, True),  # both cut into single heads
        ("0.5.23", 2, (4, 4), 8, True),
    ],
)
def test_decode_pools_behind_one_prefill(release, p, pools, total, ok):
    assert judge_pools(find_release(release), p, pools, total).ok is ok


def test_mla_pools_mix_freely():
    assert judge_pools(find_release("0.5.23"), 2, (1, 4), 1, kind=LayoutKind.MLA).ok


def test_pools_with_slices_of_one_length_get_wrong_heads():
    assert judge_pools(find_release("0.5.13"), 2, (4, 8), 4).outcome is Outcome.WRONG_BYTES
    assert judge_pools(find_release("0.5.23"), 2, (4, 8), 4).ok
