"""Layouts from packaged facts and from config.json."""

import json

import pytest

from disagg_cli.errors import UsageError
from disagg_cli.kv.layout import UnsupportedLayout
from disagg_cli.kv.models import layout_for, layout_from_config, packaged_layouts

LLAMA = {"num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4, "hidden_size": 512}


def test_qwen3_32b_is_packaged():
    layout = layout_for("Qwen/Qwen3-32B")
    assert (layout.num_layers, layout.attention_heads, layout.total_kv_heads, layout.head_dim) == (64, 64, 8, 128)


@pytest.mark.parametrize("layout", packaged_layouts().values(), ids=lambda layout: layout.name)
def test_every_packaged_layout_names_its_source(layout):
    assert layout.source.startswith("https://")


def test_a_config_gives_heads_layers_and_head_size():
    layout = layout_from_config(LLAMA)
    assert (layout.total_kv_heads, layout.num_layers, layout.head_dim) == (4, 2, 64)


def test_without_kv_heads_every_attention_head_has_its_own():
    assert layout_from_config(LLAMA | {"num_key_value_heads": None}).total_kv_heads == 8


def test_multi_query_has_one():
    assert layout_from_config(LLAMA | {"multi_query": True}).total_kv_heads == 1


def test_a_vision_model_keeps_its_text_part_apart():
    assert layout_from_config({"text_config": LLAMA, "torch_dtype": "float16"}).kv_dtype == "float16"


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        ({"kv_lora_rank": 512}, r"MLA"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, r"sliding_attention"),
        ({"layer_types": ["linear_attention", "full_attention"]}, r"linear_attention"),
        ({"sliding_window": 4096}, r"sliding window"),
        ({"hybrid_override_pattern": "M-M*"}, r"Mamba"),
        ({"v_head_dim": 32}, r"V heads"),
        ({"num_key_value_heads": [4, 8]}, r"layer to layer"),
    ],
)
def test_other_caches_are_refused_by_name(extra, reason):
    with pytest.raises(UnsupportedLayout, match=reason):
        layout_from_config(LLAMA | extra)


def test_a_sliding_window_that_is_off_is_no_sliding_window():
    assert layout_from_config(LLAMA | {"sliding_window": 4096, "use_sliding_window": False}).total_kv_heads == 4


def test_a_missing_number_is_named():
    with pytest.raises(UsageError, match="no usable num_hidden_layers"):
        layout_from_config(LLAMA | {"num_hidden_layers": None})


@pytest.mark.parametrize("name", ["", "config.json"])
def test_a_folder_or_its_config_will_do(tmp_path, name):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    layout = layout_for(str(tmp_path / name))
    assert (layout.name, layout.total_kv_heads) == (tmp_path.name, 4)


@pytest.mark.parametrize(("text", "complaint"), [("{", "cannot read"), ("[]", "not a JSON object")])
def test_a_bad_config_is_a_usage_error(tmp_path, text, complaint):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UsageError, match=complaint) as caught:
        layout_for(str(tmp_path))
    assert caught.value.where == str(tmp_path / "config.json")


def test_an_unknown_model_lists_the_known_ones():
    with pytest.raises(UsageError, match="no KV layout for model 'nope'") as caught:
        layout_for("nope")
    assert "Qwen/Qwen3-32B" in (caught.value.fix or "")
