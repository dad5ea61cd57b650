"""What a request moves, and the least time that it takes."""

import pytest
from hypothesis import given
from kv_strategies import sizes

from disagg_cli.errors import UsageError
from disagg_cli.kv.layout import KVLayout, LayoutKind, WindowPool
from disagg_cli.kv.models import layout_for
from disagg_cli.kv.parallelism import Parallelism
from disagg_cli.kv.plan import plan_slices
from disagg_cli.kv.traffic import find_link, links, measure


def traffic(layout, prefill, decode, tokens=8192):
    prefill, decode = (side if isinstance(side, Parallelism) else Parallelism(tp=side) for side in (prefill, decode))
    return measure(plan_slices(layout, prefill, decode), tokens)


def layout(total, **changes):
    return KVLayout(**{"name": "m", "total_kv_heads": total, "num_layers": 4, "head_dim": 8, **changes})


def test_the_seeds_request():
    seen = traffic(layout_for("Qwen/Qwen3-32B"), 4, 1)
    assert (seen.request_bytes, seen.wire_bytes, seen.sent, seen.received) == (2 << 30, 2 << 30, 1 << 29, 2 << 30)
    assert (seen.fan_out, seen.fan_in) == (1, 4)


def test_tcp_cannot_meet_300_ms():
    seen = traffic(layout_for("Qwen/Qwen3-32B"), 4, 1)
    assert seen.seconds(find_link("tcp-25")) > 0.3 > seen.seconds(find_link("ib-ndr"))


def test_replicas_write_again():
    seen = traffic(layout(2), 4, 1, tokens=10)
    assert seen.wire_bytes == 2 * seen.request_bytes


def test_mla_is_sent_once_to_each_decode_rank():
    latent = layout(1, latent=True, kind=LayoutKind.MLA)
    seen = traffic(latent, 4, 2, tokens=10)
    assert (seen.wire_bytes, seen.fan_in) == (2 * seen.request_bytes, 1)


def test_windows_count_their_last_tokens_only():
    window = WindowPool(layers=3, tokens=100, kv_heads=2, head_dim=8, v_head_dim=8)
    swa = layout(2, kv_layers=(0,), window=window, kind=LayoutKind.SWA)
    assert swa.request_bytes(1000) == (1000 * 1 + 100 * 3) * 2 * 16 * 2


def test_a_stage_sends_its_layers_and_decode_hears_from_all_stages():
    seen = traffic(layout(4), Parallelism(tp=2, pp=2), 1, tokens=10)
    assert (seen.sent * 4, seen.fan_in) == (seen.request_bytes, 4)


def test_links_stand_fastest_first_with_their_source():
    rates = [link.bytes_per_s for link in links().values()]
    assert rates == sorted(rates, reverse=True)
    assert all(link.source for link in links().values())


def test_an_unknown_link_lists_the_known_ones():
    with pytest.raises(UsageError, match="unknown link 'pigeon'") as caught:
        find_link("pigeon")
    assert "ib-ndr" in (caught.value.fix or "")


def test_no_tokens_are_no_request():
    with pytest.raises(UsageError, match="tokens must be at least 1, not 0"):
        traffic(layout(2), 1, 1, tokens=0)


@given(sizes(most_ranks=16, most_heads=32))
def test_what_is_sent_is_what_is_received(size):
    prefill, decode, total = size
    seen = traffic(layout(total), prefill, decode, tokens=10)
    assert seen.sent * prefill >= seen.wire_bytes <= seen.received * decode
    assert seen.wire_bytes >= seen.request_bytes
