"""Layouts by name, from disk, and from the hub."""

import json

import pytest

from disagg_cli.errors import UsageError
from disagg_cli.kv.models import layout_for, packaged_layout, packaged_models

LLAMA = {"num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4, "hidden_size": 512}


def no_hub(_model):
    raise UsageError("the hub was asked")


def test_qwen3_32b_is_packaged():
    layout = layout_for("Qwen/Qwen3-32B")
    assert (layout.num_layers, layout.attention_heads, layout.total_kv_heads, layout.head_dim) == (64, 64, 8, 128)


def test_a_name_is_found_in_any_case():
    assert layout_for("qwen/qwen3-32b").name == "Qwen/Qwen3-32B"


def test_there_are_many():
    assert len(packaged_models()) >= 40


@pytest.mark.parametrize("name", packaged_models())
def test_every_packaged_model_has_a_layout_and_a_source(name):
    layout = packaged_layout(name)
    assert layout.source.startswith(f"https://huggingface.co/{name}/blob/main/config.json; ")
    assert layout.bytes_per_token > 0


@pytest.mark.parametrize(
    ("name", "kind", "bytes_per_token"),
    [
        ("Qwen/Qwen3-32B", "mha", 2 * 64 * 8 * 128 * 2),
        ("deepseek-ai/DeepSeek-V3", "mla", 61 * 576 * 2),
        ("deepseek-ai/DeepSeek-V3.2", "mla", 61 * (576 * 2 + 132)),
        ("zai-org/GLM-5.2", "mla", 78 * 576 * 2 + 21 * 132),
        ("openai/gpt-oss-120b", "swa", 2 * 36 * 8 * 64 * 2),
        ("Qwen/Qwen3.5-397B-A17B", "hybrid", 2 * 15 * 2 * 256 * 2),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "hybrid", 2 * 6 * 2 * 128 * 2),
        ("moonshotai/Kimi-K3", "hybrid", 24 * 576 * 2),
        ("google/gemma-3-27b-it", "mha", 2 * 62 * 16 * 128 * 2),
        ("XiaomiMiMo/MiMo-V2-Flash", "swa", (9 * 4 + 39 * 8) * (192 + 128) * 2),
    ],
)
def test_what_a_token_weighs(name, kind, bytes_per_token):
    layout = packaged_layout(name)
    assert (layout.kind, layout.bytes_per_token) == (kind, bytes_per_token)


@pytest.mark.parametrize("name", ["", "config.json"])
def test_a_folder_or_its_config_will_do(tmp_path, name):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    layout = layout_for(str(tmp_path / name))
    assert (layout.name, layout.total_kv_heads) == (tmp_path.name, 4)


def test_a_hub_ids_config_is_fetched(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    layout = layout_for("someone/model", download=lambda model: tmp_path / "config.json")
    assert (layout.name, layout.source) == ("someone/model", "https://huggingface.co/someone/model")


def test_a_hub_that_does_not_answer_is_a_usage_error():
    with pytest.raises(UsageError, match="the hub was asked"):
        layout_for("someone/model", download=no_hub)


@pytest.mark.parametrize(("text", "complaint"), [("{", "cannot read"), ("[]", "not a JSON object"), ("\xff", "cannot")])
def test_a_bad_config_is_a_usage_error(tmp_path, text, complaint):
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError, match=complaint) as caught:
        layout_for(str(tmp_path))
    assert caught.value.where == str(tmp_path / "config.json")


@pytest.mark.parametrize("name", ["nope", "/no/such/folder", "./nope"])
def test_what_is_no_model_says_what_would_be(name):
    with pytest.raises(UsageError, match="no KV layout for model") as caught:
        layout_for(name, download=no_hub)
    assert "disagg models" in (caught.value.fix or "")
