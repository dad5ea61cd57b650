"""Faults in a set of writes, each named with its ranks and heads."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from kv_strategies import sizes

from disagg_cli.kv.coverage import Gap, Overlap, Wrong, cover
from disagg_cli.kv.heads import HeadRange
from disagg_cli.kv.layout import KVLayout
from disagg_cli.kv.parallelism import Parallelism
from disagg_cli.kv.plan import plan_slices


def plan(prefill, decode, total):
    layout = KVLayout(name="m", total_kv_heads=total, num_layers=1, head_dim=1)
    return plan_slices(layout, Parallelism(tp=prefill), Parallelism(tp=decode))


def change(plan, index, **fields):
    routes = list(plan.routes)
    routes[index] = replace(routes[index], **fields)
    return replace(plan, routes=tuple(routes))


def test_the_seeds_plan_is_complete():
    coverage = cover(plan(4, 1, 8))
    assert coverage.ok
    assert coverage.replica_writes == 0


def test_replicas_write_the_same_head_again():
    coverage = cover(plan(4, 1, 2))
    assert coverage.ok
    assert coverage.replica_writes == 2


def test_a_missing_route_is_a_gap():
    made = plan(4, 1, 8)
    assert cover(replace(made, routes=made.routes[:-1])).gaps == (Gap(0, HeadRange(6, 8)),)


def test_a_write_in_the_wrong_place_is_wrong_leaves_a_gap_and_meets_its_neighbour():
    coverage = cover(change(plan(4, 1, 8), 3, dst_head_offset=4))
    assert coverage.wrong == (Wrong(0, 3, HeadRange(4, 6), HeadRange(6, 8)),)
    assert coverage.gaps == (Gap(0, HeadRange(6, 8)),)
    assert coverage.overlaps == (Overlap(0, HeadRange(4, 6), (2, 3)),)


def test_writing_past_the_block_is_wrong():
    """What SGLang 0.5.10 does for 4 -> 2 with 8 heads: rank 3 writes at offset 6 of a 4-head block."""
    coverage = cover(change(plan(4, 2, 8), 3, dst_head_offset=6))
    assert coverage.wrong == (Wrong(1, 3, HeadRange(10, 12), HeadRange(6, 8)),)
    assert coverage.gaps == (Gap(1, HeadRange(6, 8)),)


def test_reading_past_the_block_receives_nothing_known():
    assert cover(change(plan(4, 1, 8), 0, src_head_offset=1)).wrong == (Wrong(0, 0, HeadRange(0, 2), None),)


def test_heads_picked_by_modulo_are_wrong_on_decode_ranks_1_and_2():
    """What SGLang 0.5.11 does for 1 -> 4 with 2 heads."""
    made = change(change(plan(1, 4, 2), 1, src_head_offset=1), 2, src_head_offset=0)
    assert [wrong.decode_rank for wrong in cover(made).wrong] == [1, 2]


@given(sizes())
def test_every_plan_is_complete(size):
    assert cover(plan(*size)).ok


@given(sizes(most_ranks=16, most_heads=32), st.data())
def test_any_route_that_is_shifted_is_noticed(size, data):
    made = plan(*size)
    index = data.draw(st.integers(0, len(made.routes) - 1))
    field = data.draw(st.sampled_from(["src_head_offset", "dst_head_offset"]))
    shift = data.draw(st.sampled_from([-1, 1]))
    assert not cover(change(made, index, **{field: getattr(made.routes[index], field) + shift})).ok
