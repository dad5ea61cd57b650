"""What each kind of config.json says about the KV cache."""

import pytest

from disagg_cli.errors import UsageError
from disagg_cli.kv.layout import IndexCache, UnsupportedLayout, WindowPool
from disagg_cli.kv.model_config import layout_from_config

LLAMA = {"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4, "hidden_size": 512}
MLA = {**LLAMA, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
SLIDING = ["sliding_attention", "full_attention"] * 2
GDN = {
    **LLAMA,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
}
MAMBA = {
    **LLAMA,
    "hybrid_override_pattern": "M-M*",
    "mamba_num_heads": 4,
    "mamba_head_dim": 16,
    "n_groups": 2,
    "ssm_state_size": 8,
    "conv_kernel": 4,
}
KIMI = {
    **MLA,
    "linear_attn_config": {"kda_layers": [1, 2, 3], "num_heads": 4, "head_dim": 8, "short_conv_kernel_size": 4},
}


def test_a_config_gives_heads_layers_and_head_size():
    layout = layout_from_config(LLAMA)
    assert (layout.kind, layout.total_kv_heads, layout.num_layers, layout.head_dim) == ("mha", 4, 4, 64)


def test_without_kv_heads_every_attention_head_has_its_own():
    assert layout_from_config(LLAMA | {"num_key_value_heads": None}).total_kv_heads == 8


def test_multi_query_has_one():
    assert layout_from_config(LLAMA | {"multi_query": True}).total_kv_heads == 1


def test_a_vision_model_keeps_its_text_part_apart():
    assert layout_from_config({"text_config": LLAMA, "torch_dtype": "float16"}).kv_dtype == "float16"


@pytest.mark.parametrize("architecture", ["MistralForCausalLM", "Gemma3ForConditionalGeneration"])
def test_a_window_without_a_pool_of_its_own_changes_nothing(architecture):
    config = LLAMA | {"architectures": [architecture], "sliding_window": 4096, "layer_types": SLIDING}
    assert layout_from_config(config) == layout_from_config(LLAMA)


def test_v_heads_of_another_size():
    layout = layout_from_config(LLAMA | {"v_head_dim": 32})
    assert (layout.asymmetric, layout.elements_per_head) == (True, 96)


def test_mla_keeps_a_latent_and_its_rotary_part():
    layout = layout_from_config(MLA)
    assert (layout.kind, layout.total_kv_heads, layout.bytes_per_token) == ("mla", 1, 4 * 576 * 2)


def test_sparse_attention_adds_index_keys():
    layout = layout_from_config(MLA | {"index_topk": 64, "index_head_dim": 128})
    assert layout.index == IndexCache(layers=4, bytes_per_key=132)


@pytest.mark.parametrize(
    "shared",
    [
        {"indexer_types": ["full", "shared", "shared", "full"]},
        {"index_topk_pattern": "FSSF"},
        {"index_topk_freq": 3, "index_skip_topk_offset": 1},
    ],
)
def test_layers_that_share_a_selection_keep_no_index_keys(shared):
    layout = layout_from_config(MLA | {"index_topk": 64, "index_head_dim": 128} | shared)
    assert layout.index.layers == 2


def test_gpt_oss_has_a_window_pool():
    layout = layout_from_config(
        LLAMA | {"architectures": ["GptOssForCausalLM"], "sliding_window": 128, "layer_types": SLIDING}
    )
    assert (layout.kind, layout.main_layer_ids) == ("swa", (1, 3))
    assert layout.window == WindowPool(layers=2, tokens=128, kv_heads=4, head_dim=64, v_head_dim=64)


def test_gemma_4_has_other_heads_in_its_full_layers():
    config = {"architectures": ["Gemma4ForConditionalGeneration"], "sliding_window": 128, "layer_types": SLIDING}
    layout = layout_from_config(LLAMA | config | {"global_head_dim": 128, "num_global_key_value_heads": 2})
    assert (layout.total_kv_heads, layout.head_dim, layout.window.kv_heads, layout.window.head_dim) == (2, 128, 4, 64)


def test_llama_4_keeps_every_fourth_layer_whole():
    config = {"architectures": ["Llama4ForConditionalGeneration"], "attention_chunk_size": 8192}
    layout = layout_from_config(LLAMA | config)
    assert (layout.main_layer_ids, layout.window.tokens) == ((3,), 8192)


def test_gated_delta_nets_keep_a_state_of_three_parts():
    layout = layout_from_config(GDN)
    convolution, recurrent = layout.state.tensors
    assert (layout.kind, layout.main_layer_ids) == ("hybrid", (3,))
    assert (convolution.parts, convolution.declared, recurrent.parts) == ((16, 16, 64), True, (4,))
    assert layout.state_bytes == 3 * (96 * 3 * 2 + 4 * 16 * 8 * 4)


def test_mamba2_does_not_declare_its_parts():
    layout = layout_from_config(MAMBA)
    assert (layout.main_layer_ids, layout.state.layers) == ((3,), 2)
    assert (layout.state.tensors[0].parts, layout.state.cut_whole) == ((64, 16, 16), True)


def test_kimi_linear_keeps_a_latent_and_a_state():
    layout = layout_from_config(KIMI)
    assert (layout.kind, layout.latent, layout.total_kv_heads, layout.main_layer_ids) == ("hybrid", True, 1, (3,))


def test_deepseek_v4_keeps_compressed_latents_and_a_ring():
    config = {"compress_ratios": [0, 4, 128, 4, 0], "head_dim": 512, "index_head_dim": 128, "sliding_window": 128}
    layout = layout_from_config(LLAMA | config)
    assert [(pool.layers, pool.tokens) for pool in layout.compressed] == [(2, 4), (1, 128)]
    assert layout.request_bytes(256) == 64 * 2 * (584 + 132) + 2 * 584 + 128 * 4 * 584


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        ({"sparse_attention_config": {"use": 1}}, "sparse attention"),
        ({"attn_type_list": [0, 1]}, "lightning"),
        ({"block_configs": [{}]}, "differ from layer to layer"),
        ({"num_key_value_heads": [4, 8]}, "differs from layer to layer"),
        ({"mamba_d_state": 64}, "Mamba layers of this kind"),
        ({"architectures": ["Step3p5ForCausalLM"]}, "window pool of Step3p5"),
        ({"compress_ratios": [0, 2]}, "compressed"),
    ],
)
def test_other_caches_are_refused_by_name(extra, reason):
    with pytest.raises(UnsupportedLayout, match=reason):
        layout_from_config(LLAMA | extra)


def test_layers_that_are_all_of_type_1_are_no_lightning_attention():
    assert layout_from_config(LLAMA | {"attn_type_list": [1, 1, 1, 1]}).kind == "mha"


@pytest.mark.parametrize("value", [None, 0, -1, "4", 1.5, True])
def test_a_number_that_is_none_is_named(value):
    with pytest.raises(UsageError, match="no usable num_hidden_layers"):
        layout_from_config(LLAMA | {"num_hidden_layers": value})


@pytest.mark.parametrize("extra", [{"head_dim": "64"}, {"head_dim": -1}, {"num_key_value_heads": 0}, {"dtype": "int3"}])
def test_other_nonsense_is_a_usage_error(extra):
    with pytest.raises(UsageError):
        layout_from_config(LLAMA | extra)
