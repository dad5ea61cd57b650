"""Descriptors per request, and the weight of prepared lists."""

from disagg_cli.connector.case import case_of
from disagg_cli.connector.descriptors import count_descriptors
from disagg_cli.connector.releases import find_release
from disagg_cli.kv.models import layout_for
from disagg_cli.kv.parallelism import Parallelism
from disagg_cli.kv.plan import plan_slices


def count(release, prefill, decode, *, model="Qwen/Qwen3-32B", page_size=1):
    layout, sides = layout_for(model), (Parallelism(tp=prefill), Parallelism(tp=decode))
    connector = find_release(release).connector
    return count_descriptors(
        connector,
        case_of(layout, *sides),
        plan_slices(layout, *sides),
        tokens=100,
        page_size=page_size,
        pool_tokens=500_000,
    )


def test_cut_heads_are_one_descriptor_per_token_layer_k_or_v_and_sender():
    made = count("0.5.23", 4, 1)
    assert (made.per_request, made.bytes_each) == (2 * 64 * 100 * 4, 2 * 128 * 2)


def test_whole_pages_are_one_descriptor_each():
    made = count("0.5.23", 4, 4, page_size=64)
    assert (made.per_request, made.bytes_each) == (2 * 64 * 2, 64 * 2 * 128 * 2)


def test_lists_of_every_block_weigh_1_5_gb_for_500_000_tokens():
    made = count("0.5.21", 4, 1)
    assert made.target_list_bytes == 2 * 64 * 500_000 * 24


def test_the_source_list_repeats_for_each_group():
    made = count("0.5.21", 1, 4)
    assert made.source_list_bytes == 4 * made.target_list_bytes


def test_lists_of_runs_weigh_nothing():
    assert count("0.5.22", 4, 1).source_list_bytes == 2 * 64 * 40


def test_earlier_releases_prepare_nothing():
    assert count("0.5.12.post1", 4, 1).source_list_bytes is None


def test_a_latent_is_one_descriptor_per_page_and_layer():
    made = count("0.5.23", 4, 1, model="deepseek-ai/DeepSeek-V3", page_size=64)
    assert (made.per_request, made.bytes_each) == (61 * 2, 64 * 576 * 2)
