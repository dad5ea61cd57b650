"""State of linear-attention layers: parts that ranks share apart."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_cli.kv.coverage import StateFault, cover
from disagg_cli.kv.heads import HeadRange
from disagg_cli.kv.layout import KVLayout, LayoutKind
from disagg_cli.kv.linear_state import LinearState, StateTensor
from disagg_cli.kv.parallelism import Parallelism
from disagg_cli.kv.plan import plan_slices


def plan(prefill, decode, *parts):
    tensor = StateTensor(name="conv", parts=parts, bytes_per_channel=6)
    state = LinearState(layers=3, tensors=(tensor,))
    layout = KVLayout(
        name="m", total_kv_heads=2, num_layers=4, head_dim=1, kv_layers=(3,), kind=LayoutKind.HYBRID, state=state
    )
    return plan_slices(layout, Parallelism(tp=prefill), Parallelism(tp=decode))


def rows(made):
    return [(r.prefill_rank, r.decode_rank, r.part, str(r.channels), r.src_offset, r.dst_offset) for r in made]


def test_two_ranks_gather_their_q_k_v_into_one():
    assert rows(plan(2, 1, 4, 4, 8).state_routes) == [
        (0, 0, 0, "0-1", 0, 0),
        (1, 0, 0, "2-3", 0, 2),
        (0, 0, 1, "0-1", 2, 4),
        (1, 0, 1, "2-3", 2, 6),
        (0, 0, 2, "0-3", 4, 8),
        (1, 0, 2, "4-7", 4, 12),
    ]


def test_a_request_carries_all_layers():
    assert [route.bytes_per_request for route in plan(1, 1, 4).state_routes] == [4 * 6 * 3]


def test_what_does_not_divide_does_not_load():
    assert plan(4, 1, 4, 6) is None


def test_a_missing_part_is_a_fault():
    made = plan(2, 1, 4, 8)
    lacking = replace(made, state_routes=made.state_routes[:-1])
    assert cover(lacking).state == (StateFault(0, "conv", HeadRange(8, 12), None),)


def test_a_part_from_elsewhere_is_a_fault():
    made = plan(1, 2, 4, 8)
    first = replace(made.state_routes[0], channels=HeadRange(2, 4))
    assert cover(replace(made, state_routes=(first, *made.state_routes[1:]))).state[0].received == HeadRange(2, 4)


def shares(parts, tp):
    """Each rank's tensor, channel by channel, as weights and states are laid out: its share of every part in turn."""
    blocks = [[(part, channel) for channel in range(size)] for part, size in enumerate(parts)]
    return [
        [x for block in blocks for x in block[r * len(block) // tp : (r + 1) * len(block) // tp]] for r in range(tp)
    ]


@given(st.data())
def test_moving_channels_gives_every_decode_rank_its_state(data):
    prefill, decode = (2 ** data.draw(st.integers(0, 3)) for _ in range(2))
    parts = tuple(8 * data.draw(st.integers(1, 4)) for _ in range(data.draw(st.integers(1, 3))))
    made, memory = plan(prefill, decode, *parts), shares(parts, prefill)
    landed = [[None] * (sum(parts) // decode) for _ in range(decode)]
    for route in made.state_routes:
        moved = memory[route.prefill_rank][route.src_offset :][: len(route.channels)]
        landed[route.decode_rank][route.dst_offset : route.dst_offset + len(moved)] = moved
    assert landed == shares(parts, decode)
    assert cover(made).ok


@pytest.mark.parametrize(("declared", "whole"), [(True, False), (False, True)])
def test_parts_that_are_not_declared_are_cut_whole(declared, whole):
    tensor = StateTensor(name="conv", parts=(2, 2), bytes_per_channel=1, declared=declared)
    assert LinearState(layers=1, tensors=(tensor,)).cut_whole is whole
