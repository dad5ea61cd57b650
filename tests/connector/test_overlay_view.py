"""What the overlay tells the stock arithmetic, and that the right heads come of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_cli.connector.overlay.view import View, without_replicas
from disagg_cli.kv import heads

powers = st.sampled_from([1, 2, 4, 8, 16, 32, 64])


def test_two_decode_ranks_that_share_a_head_look_like_one():
    """TP1 -> TP4 with two KV heads: ranks 0 and 1 take head 0, ranks 2 and 3 head 1."""
    assert [without_replicas(1, 4, rank, 2).decode_rank for rank in range(4)] == [0, 0, 1, 1]
    assert without_replicas(1, 4, 3, 2) == View(decode_tp=2, decode_rank=1, kv_heads=2)


def test_a_shared_head_looks_as_if_it_were_the_ranks_own():
    """TP2 -> TP4 with one KV head (class H): stock finds 0 groups, here it finds one."""
    seen = without_replicas(2, 4, 3, 1)
    assert (seen, seen.groups(2)) == (View(decode_tp=2, decode_rank=1, kv_heads=2), 1)


@pytest.mark.parametrize(("prefill_tp", "decode_tp"), [(4, 4), (4, 1), (8, 2)])
def test_nothing_changes_unless_decode_is_wider(prefill_tp, decode_tp):
    assert without_replicas(prefill_tp, decode_tp, 0, 2) == View(decode_tp=decode_tp, decode_rank=0, kv_heads=2)


@given(prefill_tp=powers, wider=powers, kv_heads=powers, data=st.data())
def test_the_stock_formula_picks_the_head_that_decode_holds(prefill_tp, wider, kv_heads, data):
    """`compute_head_slice_params` (SGLang 0.5.17 to 0.5.23), written out, on what it is shown."""
    decode_tp = prefill_tp * wider
    rank = data.draw(st.integers(0, decode_tp - 1))
    seen = without_replicas(prefill_tp, decode_tp, rank, kv_heads)
    source_heads = max(1, seen.kv_heads // prefill_tp)
    first = seen.decode_rank * max(1, seen.kv_heads // seen.decode_tp) % source_heads
    sender = heads.senders(prefill_tp, decode_tp, rank)[0]
    assert heads.owned(kv_heads, prefill_tp, sender).first + first == heads.owned(kv_heads, decode_tp, rank).first
    assert seen.groups(prefill_tp) >= 1
