"""Where a model's KV layout comes from: the packaged facts, or a config.json on disk."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from disagg_cli.errors import UsageError
from disagg_cli.kv.facts import read_facts
from disagg_cli.kv.layout import KVLayout, LayoutKind, UnsupportedLayout

DEFAULT_MODEL = "Qwen/Qwen3-32B"
"""The model of sglang #22145, whose 1P4D topology on GB200 is this project's first example."""

# Config keys that mean a cache other than K and V per head, and what each means.
_OTHER_CACHES: Mapping[str, str] = {
    "kv_lora_rank": "MLA (a latent cache)",
    "linear_num_key_heads": "linear-attention layers",
    "linear_attn_config": "linear-attention layers",
    "attn_type_list": "linear-attention layers",
    "hybrid_override_pattern": "Mamba layers",
    "mamba_num_heads": "Mamba layers",
    "mamba_n_heads": "Mamba layers",
    "mamba_d_state": "Mamba layers",
    "state_size": "Mamba layers",
    "ssm_state_size": "Mamba layers",
    "index_topk": "a sparse-attention index cache",
    "block_configs": "heads that differ from layer to layer",
}
# As SGLang 0.5.23 looks for them (`ModelConfig.get_total_num_kv_heads`), in its order.
_KV_HEAD_KEYS = (
    "n_head_kv",
    "num_kv_heads",
    "num_key_value_heads",
    "multi_query_group_num",
    "num_attention_groups",
)


@cache
def packaged_layouts() -> Mapping[str, KVLayout]:
    """Layouts of the models in models.yaml, by hub name."""
    facts = read_facts(Path(__file__).with_name("models.yaml"))
    return {name: _packaged(name, fact) for name, fact in facts.items()}


def _packaged(name: str, fact: Mapping[str, Any]) -> KVLayout:
    return KVLayout(
        name=name,
        total_kv_heads=fact["kv_heads"],
        num_layers=fact["layers"],
        head_dim=fact["head_dim"],
        kv_dtype=fact["dtype"],
        attention_heads=fact["attention_heads"],
        source=fact["source"],
    )


def layout_for(model: str) -> KVLayout:
    """Find a model's layout: a packaged name, a folder with a config.json, or the path of one.

    Raises UsageError where there is none, or where the file cannot be read; UnsupportedLayout where the cache
    is not modelled.
    """
    known = packaged_layouts().get(model)
    if known is not None:
        return known
    path = Path(model).expanduser()
    if path.is_dir():
        path /= "config.json"
    if not path.is_file():
        raise UsageError(
            f"no KV layout for model {model!r}",
            fix=f"a folder or file with its config.json, or one of: {', '.join(packaged_layouts())}",
        )
    return layout_from_config(_read_config(path), name=path.parent.name or model, source=str(path))


def _read_config(path: Path) -> Mapping[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read the model's config: {error}", where=str(path)) from error
    if not isinstance(config, dict):
        raise UsageError("the model's config is not a JSON object", where=str(path))
    return config


def layout_from_config(config: Mapping[str, Any], *, name: str = "model", source: str = "") -> KVLayout:
    """Read a hub model's config.json (MHA, GQA and MQA caches).

    Raises UnsupportedLayout for any other cache, and UsageError where a number is missing.
    """
    text = config.get("text_config", config)
    reason = _unsupported(text)
    if reason:
        raise UnsupportedLayout(f"{name}: {reason} is not modelled yet", where=source or None)
    attention_heads = _number(text, "num_attention_heads", source)
    return KVLayout(
        name=name,
        total_kv_heads=_kv_heads(text, attention_heads),
        num_layers=_number(text, "num_hidden_layers", source),
        head_dim=text.get("head_dim") or _number(text, "hidden_size", source) // attention_heads,
        kv_dtype=text.get("dtype") or text.get("torch_dtype") or config.get("torch_dtype") or "bfloat16",
        attention_heads=attention_heads,
        kind=LayoutKind.MHA,
        source=source,
    )


def _unsupported(text: Mapping[str, Any]) -> str | None:
    """Name what in this config is more than K and V per head; None where there is nothing."""
    for key, meaning in _OTHER_CACHES.items():
        if text.get(key):
            return f"{meaning} ({key})"
    layer_types = set(text.get("layer_types") or ()) - {"full_attention"}
    if layer_types:
        return f"a mix of layers ({', '.join(sorted(layer_types))})"
    if text.get("sliding_window") and text.get("use_sliding_window", True):
        return "a sliding window (sliding_window)"
    v_head_dim = text.get("v_head_dim")
    if v_head_dim and v_head_dim != text.get("head_dim"):
        return "V heads of another size than K heads (v_head_dim)"
    return None


def _kv_heads(text: Mapping[str, Any], attention_heads: int) -> int:
    if text.get("multi_query") and not text.get("new_decoder_architecture"):
        return 1
    found = next((text[key] for key in _KV_HEAD_KEYS if text.get(key) is not None), attention_heads)
    if not isinstance(found, int):
        raise UnsupportedLayout(f"KV heads that differ from layer to layer are not modelled yet (found {found!r})")
    return found


def _number(text: Mapping[str, Any], key: str, source: str) -> int:
    value = text.get(key)
    if not isinstance(value, int) or value < 1:
        raise UsageError(f"the model's config has no usable {key} (found {value!r})", where=source or None)
    return value
