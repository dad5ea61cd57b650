"""A KV layout from a model's config.json, by the rules by which SGLang 0.5.23 builds its pools.

Sources: `ModelConfig` (`srt/configs/model_config.py`: `is_hybrid_swa_model`, `get_hybrid_layer_ids`,
`_derive_model_shapes`, `is_deepseek_dsa`), `srt/configs/{qwen3_next,nemotron_h,kimi_linear}.py` and
`srt/mem_cache/memory_pool.py`. A sliding window counts only for the architectures that SGLang gives a window pool;
others keep all tokens of all layers.
"""

from collections.abc import Callable, Mapping
from typing import Any

from disagg_cli.errors import UsageError
from disagg_cli.kv.layout import CompressedPool, IndexCache, KVLayout, LayoutKind, UnsupportedLayout, WindowPool
from disagg_cli.kv.linear_state import LinearState, StateTensor

Config = Mapping[str, Any]

# Caches that no reader below knows, by a key that only such configs have.
_UNKNOWN: Mapping[str, str] = {
    "sparse_attention_config": "sparse attention with an index beside K and V",
    "attn_type_list": "lightning-attention layers",
    "block_configs": "heads that differ from layer to layer",
    "mamba_d_state": "Mamba layers of this kind",
    "mamba_n_heads": "Mamba layers of this kind",
    "state_size": "a model of Mamba layers only",
    "attention_chunk_size": "chunked attention",
    "num_attention_heads_per_layer": "heads that differ from layer to layer",
}
# As SGLang looks for them (`get_total_num_kv_heads`), in its order.
_KV_HEAD_KEYS = ("n_head_kv", "num_kv_heads", "num_key_value_heads", "multi_query_group_num", "num_attention_groups")

_WINDOW_ARCHITECTURES = frozenset(
    (
        "GptOssForCausalLM",
        "MiMoV2ForCausalLM",
        "MiMoV2FlashForCausalLM",
        "Gemma4ForCausalLM",
        "Gemma4ForConditionalGeneration",
        "Gemma4UnifiedForConditionalGeneration",
        "Llama4ForConditionalGeneration",
        "LagunaForCausalLM",
        "MellumForCausalLM",
        "GraniteSWAForCausalLM",
        "GraniteMoeSWAForCausalLM",
    )
)
_OTHER_WINDOW_ARCHITECTURES = frozenset(
    (
        "BeamForCausalLM",
        "Step3p5ForCausalLM",
        "Step3p7ForConditionalGeneration",
        "Step3p7FlashForCausalLM",
        "IQuestQ1ForCausalLM",
        "InklingForConditionalGeneration",
        "MuseGlimmerForCausalLM",
        "MuseGlimmerForConditionalGeneration",
        "DiffusionGemmaForBlockDiffusion",
        "UnlimitedOCRForCausalLM",
        "Dots3NoteForCausalLM",
    )
)
_STATE_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_CONVOLUTION_BYTES = 2  # bfloat16, SGLang's default for convolution state


def layout_from_config(config: Config, *, name: str = "model", source: str = "") -> KVLayout:
    """Read a hub model's config.json.

    Raises UnsupportedLayout for a cache that is not modelled, and UsageError where a number is missing or no number.
    """
    try:
        return _Reader(config, name, source).read()
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, ZeroDivisionError) as error:
        what = f"the model's config holds a value of an unexpected kind ({type(error).__name__}: {error})"
        raise UsageError(what, where=source or None) from error


class _Reader:
    """One config being read; `text` is its language model's part."""

    def __init__(self, config: Config, name: str, source: str) -> None:
        self.config = config
        self.text: Config = config.get("text_config") or config
        if not isinstance(self.text, Mapping):
            raise UsageError("the model's text_config is not a JSON object", where=source or None)
        self.name = name
        self.source = source

    def read(self) -> KVLayout:
        """Find the reader for this cache."""
        for key, read in _READERS:
            if self.text.get(key):
                return read(self)
        for key, meaning in _UNKNOWN.items():
            if self.text.get(key) and not self._harmless(key):
                raise self.unsupported(f"{meaning} ({key})")
        if self.architectures & _OTHER_WINDOW_ARCHITECTURES:
            raise self.unsupported(f"the window pool of {', '.join(self.architectures)}")
        return _window(self) if self.windowed else _heads(self)

    def _harmless(self, key: str) -> bool:
        """Whether a key says nothing here: chunks are a window pool's, and MiniMax-M2's layers are all of type 1."""
        if key == "attention_chunk_size":
            return self.windowed
        return key == "attn_type_list" and set(self.text[key]) == {1}

    @property
    def architectures(self) -> set[str]:
        """The model's architectures."""
        return set(self.config.get("architectures") or self.text.get("architectures") or ())

    @property
    def windowed(self) -> bool:
        """Whether SGLang gives this architecture a pool for sliding-window layers."""
        return bool(self.architectures & _WINDOW_ARCHITECTURES)

    def unsupported(self, what: str) -> UnsupportedLayout:
        """Refuse a cache by its name."""
        return UnsupportedLayout(
            f"{self.name}: {what} is not modelled",
            where=self.source or None,
            fix="plan only the sizes with a model of K and V per head and --kv-heads",
        )

    def number(self, key: str) -> int:
        """A positive number that the config must have."""
        value = self.text.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise UsageError(f"the model's config has no usable {key} (found {value!r})", where=self.source or None)
        return value

    def names(self, key: str) -> list[Any]:
        """A list with an entry per layer that the config must have."""
        value = self.text.get(key)
        if not isinstance(value, list) or not value:
            raise UsageError(f"the model's config has no usable {key}", where=self.source or None)
        return value

    def common(self, layers: int | None = None) -> dict[str, Any]:
        """What every layout has."""
        draft = self.text.get("num_nextn_predict_layers") or self.text.get("mtp_num_hidden_layers") or 0
        dtypes = (part.get(key) for part in (self.text, self.config) for key in ("dtype", "torch_dtype"))
        return {
            "name": self.name,
            "num_layers": layers or self.number("num_hidden_layers"),
            "kv_dtype": next((dtype for dtype in dtypes if dtype and dtype != "auto"), "bfloat16"),
            "attention_heads": self.number("num_attention_heads"),
            "draft_layers": draft,
            "source": self.source,
        }

    def kv_heads(self) -> int:
        """KV heads before replication, as `get_total_num_kv_heads` finds them."""
        if self.text.get("multi_query") and not self.text.get("new_decoder_architecture"):
            return 1
        found = next((self.text[key] for key in _KV_HEAD_KEYS if self.text.get(key) is not None), None)
        if found is None:
            return self.number("num_attention_heads")
        if not isinstance(found, int):
            raise self.unsupported(f"a number of KV heads that differs from layer to layer (found {found!r})")
        return found

    def head_dim(self) -> int:
        """Elements of a head."""
        if self.text.get("head_dim"):
            return self.number("head_dim")
        return self.number("hidden_size") // self.number("num_attention_heads")


def _heads(reader: _Reader) -> KVLayout:
    """K and V per head in every layer."""
    return KVLayout(
        **reader.common(),
        total_kv_heads=reader.kv_heads(),
        head_dim=reader.head_dim(),
        v_head_dim=reader.text.get("v_head_dim") or None,
    )


def _latent(reader: _Reader) -> KVLayout:
    """MLA: a latent and its rotary part, and the indexer's keys where there is one."""
    common = reader.common()
    index = None
    if reader.text.get("index_topk"):
        layers = sum(not _shares_topk(reader.text, layer) for layer in range(common["num_layers"]))
        index = IndexCache(layers=layers, bytes_per_key=_index_bytes(reader.number("index_head_dim")))
    return KVLayout(
        **common,
        kind=LayoutKind.MLA,
        latent=True,
        total_kv_heads=1,
        head_dim=reader.number("kv_lora_rank") + reader.number("qk_rope_head_dim"),
        index=index,
    )


def _index_bytes(head_dim: int) -> int:
    """An index key in FP8 with a 32-bit scale for each 128 elements (`DSATokenToKVPool`)."""
    return head_dim + head_dim // 128 * 4


def _shares_topk(text: Config, layer: int) -> bool:
    """Whether a layer reuses an earlier one's selection and so keeps no index keys (`dsa_layer_skips_topk`)."""
    kinds = text.get("indexer_types")
    if kinds:
        return layer < len(kinds) and bool(kinds[layer] == "shared")
    pattern = text.get("index_topk_pattern")
    if pattern:
        return layer < len(pattern) and bool(pattern[layer] == "S")
    every = text.get("index_topk_freq") or 1
    offset = text.get("index_skip_topk_offset")
    return max(layer - (1 if offset is None else offset - 1), 0) % every != 0


def _compressed(reader: _Reader) -> KVLayout:
    """DeepSeek-V4: latents of every 4 or 128 tokens, an index over the former, and windows in every layer.

    Bytes of an entry: 448 in FP8, 64 rotary elements of 16 bits, 8 of scales (`DeepSeekV4SingleKVPool`).
    """
    common = reader.common()
    ratios = reader.names("compress_ratios")[: common["num_layers"]]
    if set(ratios) - {0, 4, 128}:
        raise reader.unsupported(f"a cache compressed {sorted(set(ratios))} to 1 (compress_ratios)")
    entry = 448 + 64 * 2 + 8
    index = _index_bytes(reader.number("index_head_dim"))
    pools = (
        CompressedPool(layers=ratios.count(4), tokens=4, bytes_per_entry=entry + index),
        CompressedPool(layers=ratios.count(128), tokens=128, bytes_per_entry=entry),
    )
    return KVLayout(
        **common,
        kind=LayoutKind.MLA,
        latent=True,
        total_kv_heads=1,
        head_dim=reader.head_dim(),
        kv_layers=(),
        compressed=pools,
        ring=CompressedPool(layers=common["num_layers"], tokens=reader.number("sliding_window"), bytes_per_entry=entry),
    )


def _window(reader: _Reader) -> KVLayout:
    """K and V per head, sliding-window layers in a pool of their own."""
    common = reader.common()
    full = _full_layers(reader, common["num_layers"])
    text, heads, size = reader.text, reader.kv_heads(), reader.head_dim()
    value = text.get("v_head_dim") or size
    window = WindowPool(
        layers=common["num_layers"] - len(full),
        tokens=reader.number("sliding_window" if text.get("sliding_window") else "attention_chunk_size"),
        kv_heads=text.get("swa_num_key_value_heads") or heads,
        head_dim=text.get("swa_head_dim") or size,
        v_head_dim=text.get("swa_v_head_dim") or text.get("swa_head_dim") or value,
    )
    if text.get("global_head_dim"):  # Gemma 4 names its full layers' heads apart
        heads, size = text.get("num_global_key_value_heads") or heads, text["global_head_dim"]
        value = size
    kind = LayoutKind.SWA if window.layers else LayoutKind.MHA
    return KVLayout(
        **common,
        kind=kind,
        total_kv_heads=heads,
        head_dim=size,
        v_head_dim=value,
        kv_layers=full,
        window=window if window.layers else None,
    )


def _full_layers(reader: _Reader, layers: int) -> tuple[int, ...]:
    """The layers that keep every token, as `get_hybrid_layer_ids` finds them."""
    if "Llama4ForConditionalGeneration" in reader.architectures:
        return tuple(layer for layer in range(layers) if (layer + 1) % 4 == 0)
    pattern = reader.text.get("hybrid_layer_pattern")
    if pattern:
        return tuple(layer for layer, kind in enumerate(pattern[:layers]) if kind == 0)
    kinds = reader.names("layer_types")[:layers]
    return tuple(layer for layer, kind in enumerate(kinds) if kind == "full_attention")


def _gated_delta_net(reader: _Reader) -> KVLayout:
    """Qwen3-Next and Qwen3.5: attention in every few layers, gated delta nets in the others."""
    common, text = reader.common(), reader.text
    layers = common["num_layers"]
    every = text.get("full_attention_interval")
    kinds = text.get("layer_types")
    if kinds:
        full = tuple(layer for layer, kind in enumerate(kinds[:layers]) if kind == "full_attention")
    else:
        full = tuple(layer for layer in range(layers) if (layer + 1) % (every or 1) == 0)
    keys, values = reader.number("linear_num_key_heads"), reader.number("linear_num_value_heads")
    key_dim, value_dim = reader.number("linear_key_head_dim"), reader.number("linear_value_head_dim")
    convolution = (reader.number("linear_conv_kernel_dim") - 1) * _CONVOLUTION_BYTES
    state = LinearState(
        layers=layers - len(full),
        heads=(keys, values),
        tensors=(
            StateTensor(
                name="conv", parts=(keys * key_dim, keys * key_dim, values * value_dim), bytes_per_channel=convolution
            ),
            StateTensor(name="ssm", parts=(values,), bytes_per_channel=value_dim * key_dim * _state_bytes(text)),
        ),
    )
    return _hybrid(reader, common, full, state)


def _mamba2(reader: _Reader) -> KVLayout:
    """Nemotron-H: attention, Mamba2 and feed-forward layers. The connector is not told of the parts of `conv`."""
    text = reader.text
    kinds = {"M": "mamba", "*": "attention"}
    pattern = text.get("layers_block_type") or [kinds.get(letter, "") for letter in text["hybrid_override_pattern"]]
    common = reader.common(layers=len(pattern))
    full = tuple(layer for layer, kind in enumerate(pattern) if kind == "attention")
    heads, size = reader.number("mamba_num_heads"), reader.number("mamba_head_dim")
    groups, states = reader.number("n_groups"), reader.number("ssm_state_size")
    convolution = (reader.number("conv_kernel") - 1) * _CONVOLUTION_BYTES
    state = LinearState(
        layers=pattern.count("mamba"),
        heads=(heads, groups),
        tensors=(
            StateTensor(
                name="conv",
                parts=(heads * size, groups * states, groups * states),
                bytes_per_channel=convolution,
                declared=False,
            ),
            StateTensor(name="ssm", parts=(heads,), bytes_per_channel=size * states * _state_bytes(text)),
        ),
    )
    return _hybrid(reader, common, full, state)


def _delta_attention(reader: _Reader) -> KVLayout:
    """Kimi Linear and Kimi K3: a latent in every few layers, Kimi delta attention in the others."""
    common, linear = reader.common(), reader.text["linear_attn_config"]
    deltas = {layer - 1 for layer in linear["kda_layers"]}
    full = tuple(layer for layer in range(common["num_layers"]) if layer not in deltas)
    heads, size = linear["num_heads"], linear["head_dim"]
    channels = heads * size
    state = LinearState(
        layers=len(deltas),
        heads=(heads,),
        tensors=(
            StateTensor(
                name="conv",
                parts=(channels, channels, channels),
                bytes_per_channel=(linear["short_conv_kernel_size"] - 1) * _CONVOLUTION_BYTES,
            ),
            StateTensor(name="ssm", parts=(heads,), bytes_per_channel=size * size * 4),
        ),
    )
    return KVLayout(
        **common,
        kind=LayoutKind.HYBRID,
        latent=True,
        total_kv_heads=1,
        head_dim=reader.number("kv_lora_rank") + reader.number("qk_rope_head_dim"),
        kv_layers=full,
        state=state,
    )


def _state_bytes(text: Config) -> int:
    """Bytes of an element of recurrent state: float32 unless the config says otherwise (`mamba2_state_dtype`)."""
    return _STATE_DTYPE_BYTES.get(text.get("mamba_ssm_dtype") or "float32", 4)


def _hybrid(reader: _Reader, common: dict[str, Any], full: tuple[int, ...], state: LinearState) -> KVLayout:
    return KVLayout(
        **common,
        kind=LayoutKind.HYBRID,
        total_kv_heads=reader.kv_heads(),
        head_dim=reader.head_dim(),
        kv_layers=full,
        state=state,
    )


# Tried in this order: the key that marks a cache, and its reader.
_READERS: tuple[tuple[str, Callable[[_Reader], KVLayout]], ...] = (
    ("linear_attn_config", _delta_attention),
    ("linear_num_key_heads", _gated_delta_net),
    ("mamba_num_heads", _mamba2),
    ("compress_ratios", _compressed),
    ("kv_lora_rank", _latent),
)
