"""Pipeline stages and their layers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_cli.kv.heads import HeadRange
from disagg_cli.kv.layout import KVLayout
from disagg_cli.kv.stages import StageRoute, layers_of_stage, main_layers_per_stage, stage_routes


def lengths(layers, stages):
    return [len(layers_of_stage(layers, stages, stage)) for stage in range(stages)]


@pytest.mark.parametrize(
    ("layers", "stages", "expected"), [(64, 4, [16] * 4), (94, 4, [23, 23, 24, 24]), (5, 2, [2, 3]), (3, 1, [3])]
)
def test_the_last_stages_take_the_rest(layers, stages, expected):
    assert lengths(layers, stages) == expected


@given(st.integers(1, 200), st.integers(1, 32))
def test_stages_hold_every_layer_once(layers, stages):
    held = [layers_of_stage(layers, stages, stage) for stage in range(stages)]
    assert [layer for span in held for layer in range(span.first, span.past_end)] == list(range(layers))


def test_all_stages_feed_a_decode_of_one():
    assert stage_routes(4, 2, 1) == (StageRoute(0, 0, HeadRange(0, 2)), StageRoute(1, 0, HeadRange(2, 4)))


def test_as_many_decode_stages_are_fed_each_by_its_own():
    assert [route.decode_stage for route in stage_routes(4, 2, 2)] == [0, 1]


def test_a_hybrids_stages_count_only_the_layers_of_its_pool():
    layout = KVLayout(name="m", total_kv_heads=1, num_layers=8, head_dim=1, kv_layers=(3, 6, 7))
    assert main_layers_per_stage(layout, 2) == (1, 2)


def test_more_stages_than_layers_have_none():
    assert main_layers_per_stage(KVLayout(name="m", total_kv_heads=1, num_layers=2, head_dim=1), 3) == ()
