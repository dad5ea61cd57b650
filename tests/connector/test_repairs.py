"""Which plans come right with the overlay, release by release."""

import pytest

from disagg_cli.connector.case import Case
from disagg_cli.connector.releases import find_release
from disagg_cli.connector.repairs import judge_repaired, repairs
from disagg_cli.kv.layout import LayoutKind


def case(prefill_tp, decode_tp, kv_heads, **more):
    return Case(prefill_tp=prefill_tp, decode_tp=decode_tp, kv_heads=kv_heads, **more)


@pytest.mark.parametrize("release", ["0.5.13", "0.5.16", "0.5.17", "0.5.21", "0.5.22", "0.5.23"])
@pytest.mark.parametrize("sizes", [(2, 4, 1), (4, 8, 2), (1, 4, 2), (2, 4, 2), (1, 2, 1)])
def test_replicated_destinations(release, sizes):
    """Classes F, G and H."""
    assert repairs(find_release(release), [case(*sizes)])


def test_decode_pools_of_different_tp_behind_one_prefill():
    assert repairs(find_release("0.5.23"), [case(2, 1, 4), case(2, 4, 4)])


@pytest.mark.parametrize("release", ["0.5.11", "0.5.12"])
@pytest.mark.parametrize("sizes", [(4, 1, 8), (4, 2, 8), (4, 1, 2), (4, 4, 8), (1, 4, 2)])
def test_releases_that_count_wrongly(release, sizes):
    """TP4 -> TP1 and others: on 0.5.11 senders say the same, on 0.5.12 a request without extra state never ends."""
    assert repairs(find_release(release), [case(*sizes)])


def test_prefill_stages_are_told_apart_on_0_5_11_and_not_on_0_5_12():
    assert repairs(find_release("0.5.11"), [case(4, 2, 8, pp=2)])
    assert not repairs(find_release("0.5.12"), [case(4, 2, 8, pp=2)])


def test_there_is_no_door_before_0_5_11():
    assert judge_repaired(find_release("0.5.10"), case(2, 4, 1)) is None


def test_other_caches_are_left_alone():
    assert judge_repaired(find_release("0.5.23"), case(2, 4, 1, kind=LayoutKind.SWA)) is None


def test_sizes_that_do_not_divide_stay_wrong():
    assert not repairs(find_release("0.5.23"), [case(2, 3, 6)])
