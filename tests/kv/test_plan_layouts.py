"""Plans of caches that are not only K and V per head."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_cli.kv.coverage import cover
from disagg_cli.kv.heads import HeadRange
from disagg_cli.kv.layout import IndexCache, KVLayout, LayoutKind, WindowPool
from disagg_cli.kv.parallelism import Parallelism
from disagg_cli.kv.plan import DummyContact, plan_slices


def plan(layout, prefill, decode, **sizes):
    return plan_slices(layout, Parallelism(tp=prefill, **sizes), Parallelism(tp=decode))


def mla(**changes):
    fixed = {"name": "m", "total_kv_heads": 1, "num_layers": 4, "head_dim": 576, "latent": True}
    return KVLayout(**fixed, kind=LayoutKind.MLA, **changes)


def test_one_prefill_rank_sends_the_latent_and_the_others_are_contacted_in_vain():
    made = plan(mla(), 4, 1)
    assert [(route.prefill_rank, route.heads) for route in made.routes] == [(0, HeadRange(0, 1))]
    assert made.dummies == (DummyContact(1, 0), DummyContact(2, 0), DummyContact(3, 0))
    assert made.keys_expected == 1


def test_a_wider_decode_gets_the_latent_on_every_rank():
    made = plan(mla(), 2, 4)
    assert [(route.prefill_rank, route.decode_rank) for route in made.routes] == [(0, 0), (0, 1), (1, 2), (1, 3)]
    assert made.dummies == ()


def test_stages_multiply_the_senders_of_a_latent():
    assert plan(mla(), 4, 1, pp=2).keys_expected == 2


def test_index_keys_travel_with_the_latent():
    made = plan(mla(index=IndexCache(layers=4, bytes_per_key=132)), 2, 1)
    assert made.routes[0].bytes_per_token == 4 * (576 * 2 + 132)


def test_a_hybrids_latent_is_written_by_every_sender():
    layout = KVLayout(name="m", total_kv_heads=1, num_layers=4, head_dim=576, latent=True, kind=LayoutKind.HYBRID)
    made = plan(layout, 4, 1)
    assert (len(made.routes), made.keys_expected, made.dummies) == (4, 4, ())
    assert cover(made).replica_writes == 3


@pytest.mark.parametrize(("window_heads", "loads"), [(8, True), (2, True), (6, False)])
def test_window_layers_must_load_too(window_heads, loads):
    window = WindowPool(layers=2, tokens=128, kv_heads=window_heads, head_dim=4, v_head_dim=4)
    layout = KVLayout(name="m", total_kv_heads=8, num_layers=4, head_dim=4, kv_layers=(1, 3), window=window)
    assert (plan(layout, 4, 1) is not None) is loads


def test_window_layers_add_their_bytes_to_each_route():
    window = WindowPool(layers=2, tokens=128, kv_heads=4, head_dim=4, v_head_dim=4)
    layout = KVLayout(name="m", total_kv_heads=8, num_layers=4, head_dim=4, kv_layers=(1, 3), window=window)
    main, windows = 2 * 2 * 8 * 2, 1 * 2 * 8 * 2
    assert plan(layout, 4, 1).routes[0].bytes_per_token == main + windows


@given(st.integers(0, 6), st.integers(0, 6))
def test_every_decode_rank_gets_the_latent_once(prefill, decode):
    made = plan(mla(), 2**prefill, 2**decode)
    assert cover(made).ok
    assert [route.decode_rank for route in made.routes] == list(range(2**decode))
    contacts = [*made.routes, *made.dummies]
    assert {contact.prefill_rank for contact in contacts} == set(range(2**prefill))
