"""Small models of the same attention geometry, for every model that disagg knows."""

import pytest

from disagg_cli.errors import PlanRefused
from disagg_cli.kv.model_config import layout_from_config
from disagg_cli.kv.models import packaged_layout, packaged_models
from disagg_cli.rehearsal.shrink import shrink

CANNOT = ("linear-attention or Mamba state", "compressed latents")


def shrunk(name, **sizes):
    architectures = packaged_models()[name]["config"].get("architectures") or [None]
    return shrink(packaged_layout(name), architectures[0], **sizes)


def told(found):
    return " | ".join(f"{note.kind}: {note.what}" for note in found.notes)


def test_qwen3_32b():
    found = shrunk("Qwen/Qwen3-32B")
    assert (found.model.family, found.model.attention_heads, found.model.kv_heads) == ("qwen3", 64, 8)
    assert told(found) == (
        "as written: attention: 64 query heads, 8 KV heads | reduced: layers 64 -> 2 | reduced: head size 128 -> 16 | "
        "replaced: the dtype by float32"
    )


def test_llama_is_a_llama():
    assert shrunk("meta-llama/Llama-3.3-70B-Instruct").model.family == "llama"


def test_experts_are_left_out():
    assert "Qwen3MoeForCausalLM by Qwen3ForCausalLM with dense layers" in told(shrunk("Qwen/Qwen3-30B-A3B"))


def test_a_latent_stays_a_latent():
    found = shrunk("deepseek-ai/DeepSeek-R1")
    assert (found.model.family, found.model.attention_heads) == ("deepseek", 128)
    assert "one latent for 128 query heads" in told(found)


def test_windows_stay_windows_of_the_same_heads():
    found = shrunk("openai/gpt-oss-120b")
    assert (found.model.family, found.model.kv_heads, found.model.window) == ("mellum", 8, 128)
    assert "GptOssForCausalLM by MellumForCausalLM" in told(found)


def test_an_indexer_is_said_to_be_left_out():
    assert "sparse attention by plain MLA" in told(shrunk("deepseek-ai/DeepSeek-V3.2"))


@pytest.mark.parametrize(("tps", "hidden"), [((1, 4), 128), ((3, 1), 129), ((6, 4), 132)])
def test_every_tp_divides_what_it_must(tps, hidden):
    assert shrunk("Qwen/Qwen3-32B", tps=tps).model.hidden_size == hidden


@pytest.mark.parametrize(("pps", "layers"), [({1, 4}, 4), ({1, 3}, 4), ({2, 3}, 4), ({5}, 9), ({1}, 2)])
def test_stages_are_as_uneven_as_those_of_the_large_model(pps, layers):
    """Of 64 layers: three stages have 21, 21 and 22, and where P != D, SGLang writes V of such into wrong layers."""
    assert shrunk("Qwen/Qwen3-32B", pps=pps).model.layers == layers
    assert all(64 % pp == layers % pp for pp in pps)


def no_kernel(name):
    layout = packaged_layout(name)
    return bool(layout.state or layout.compressed)


@pytest.mark.parametrize("name", [name for name in packaged_models() if no_kernel(name)])
def test_models_that_cpus_cannot_run_are_refused(name):
    with pytest.raises(PlanRefused, match="|".join(CANNOT)):
        shrunk(name)


@pytest.mark.parametrize("name", [name for name in packaged_models() if not no_kernel(name)])
def test_every_other_model_keeps_its_geometry(name):
    layout, found = packaged_layout(name), shrunk(name)
    small = layout_from_config(found.model.config())
    assert small.attention_heads == layout.attention_heads
    assert small.total_kv_heads == layout.total_kv_heads
    assert small.latent == layout.latent
    assert bool(small.window) == bool(layout.window)
    assert small.kind is layout.kind
    assert found.model.hidden_size * found.model.layers < 1000
