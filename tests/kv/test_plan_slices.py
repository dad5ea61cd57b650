"""The head-slice plan, from the seed's case to a model that moves bytes."""

import pytest
from hypothesis import given
from kv_strategies import sizes

from disagg_cli.kv.coverage import cover
from disagg_cli.kv.layout import KVLayout
from disagg_cli.kv.parallelism import Parallelism
from disagg_cli.kv.plan import plan_slices


def plan(prefill, decode, total, **prefill_sizes):
    layout = KVLayout(name="m", total_kv_heads=total, num_layers=2, head_dim=4)
    return plan_slices(layout, Parallelism(tp=prefill, **prefill_sizes), Parallelism(tp=decode))


def rows(plan):
    return [(r.prefill_rank, r.decode_rank, str(r.heads), r.src_head_offset, r.dst_head_offset) for r in plan.routes]


def test_four_prefill_ranks_fill_one_decode_rank():
    assert rows(plan(4, 1, 8)) == [
        (0, 0, "0-1", 0, 0),
        (1, 0, "2-3", 0, 2),
        (2, 0, "4-5", 0, 4),
        (3, 0, "6-7", 0, 6),
    ]


def test_one_prefill_rank_feeds_decode_ranks_that_share_heads():
    assert rows(plan(1, 4, 2)) == [(0, 0, "0", 0, 0), (0, 1, "0", 0, 0), (0, 2, "1", 1, 0), (0, 3, "1", 1, 0)]


def test_replicas_all_write():
    assert rows(plan(4, 1, 2)) == [(0, 0, "0", 0, 0), (1, 0, "0", 0, 0), (2, 0, "1", 0, 1), (3, 0, "1", 0, 1)]


def test_a_later_decode_rank_starts_again_at_offset_0():
    assert rows(plan(4, 2, 8))[2:] == [(2, 1, "4-5", 0, 0), (3, 1, "6-7", 0, 2)]


def test_both_sides_replicate():
    assert [(r.prefill_rank, str(r.heads)) for r in plan(4, 8, 2).routes] == [
        (0, "0"), (0, "0"), (1, "0"), (1, "0"), (2, "1"), (2, "1"), (3, "1"), (3, "1"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("p", "d", "pp", "keys"), [(4, 1, 1, 4), (1, 4, 1, 1), (4, 4, 1, 1), (4, 2, 2, 4), (2, 2, 2, 2)]
)
def test_keys_expected(p, d, pp, keys):
    assert plan(p, d, 8, pp=pp).keys_expected == keys


def test_dp_attention_plans_by_attention_tp():
    assert rows(plan(8, 1, 8, dp=2, dp_attention=True)) == rows(plan(4, 1, 8))


@pytest.mark.parametrize(("p", "d", "total"), [(3, 1, 8), (1, 5, 8)])
def test_what_does_not_load_has_no_plan(p, d, total):
    assert plan(p, d, total) is None


def test_sizes_that_do_not_divide_leave_gaps():
    coverage = cover(plan(2, 3, 6))
    assert [(gap.decode_rank, str(gap.heads)) for gap in coverage.gaps] == [(1, "2"), (2, "4-5")]


def load(total, tp):
    """Give every rank the heads that SGLang's weight loading gives it, counted out one by one."""
    shares = [head for head in range(total) for _ in range(max(1, tp // total))]
    size = len(shares) // tp
    return [shares[rank * size : (rank + 1) * size] for rank in range(tp)]


def move(plan, memory, decode_ranks, size):
    """Carry each route's heads, slot by slot, into empty decode memory."""
    landed = [[None] * size for _ in range(decode_ranks)]
    for route in plan.routes:
        for i in range(route.num_heads):
            head = memory[route.prefill_rank][route.src_head_offset + i]
            assert landed[route.decode_rank][route.dst_head_offset + i] in (None, head)
            landed[route.decode_rank][route.dst_head_offset + i] = head
    return landed


@given(sizes())
def test_moving_bytes_gives_every_decode_rank_its_heads(size):
    prefill, decode, total = size
    wanted = load(total, decode)
    assert move(plan(*size), load(total, prefill), decode, len(wanted[0])) == wanted


@given(sizes())
def test_each_route_carries_the_heads_it_says(size):
    prefill, _, total = size
    memory = load(total, prefill)
    for route in plan(*size).routes:
        read = memory[route.prefill_rank][route.src_head_offset :][: route.num_heads]
        assert read == list(range(route.heads.first, route.heads.past_end))


@given(sizes())
def test_every_decode_rank_hears_from_as_many_senders_as_it_waits_for(size):
    made = plan(*size)
    heard = [sum(route.decode_rank == rank for route in made.routes) for rank in range(made.decode.attention_tp)]
    assert set(heard) == {made.keys_expected}


@given(sizes())
def test_bytes_sent_are_bytes_received_and_those_repeated_by_replicas(size):
    made = plan(*size)
    received = made.decode.attention_tp * len(made.heads_of_decode(0)) * made.layout.bytes_per_head
    repeated = cover(made).replica_writes * made.layout.bytes_per_head
    assert sum(route.bytes_per_token for route in made.routes) == received + repeated


@given(sizes())
def test_there_are_as_many_routes_as_ranks_on_the_wider_side(size):
    assert len(plan(*size).routes) == max(size[:2])
