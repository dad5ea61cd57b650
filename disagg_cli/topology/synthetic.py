"""The geometry of a random-weight model. Pure; rehearsal/ writes it to disk."""

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

RECIPE = 2
"""Raised when the same SyntheticModel would be written differently, so that caches do not serve the old one."""

VOCABULARY = 512
CONTEXT = 32768

Family = Literal["qwen3", "llama", "deepseek", "mellum"]
"""By the shape of their KV cache: heads with normed queries and keys, heads, a latent (MLA), heads with windows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SyntheticModel:
    """Geometry of a dense model. Sizes in heads, layers, elements and, for the window of every other layer, tokens.

    hidden: None for the heads' elements together. A latent has no KV heads, and kv_heads then says nothing.
    """

    family: Family = "qwen3"
    attention_heads: int = 8
    kv_heads: int = 4
    layers: int = 2
    head_dim: int = 16
    hidden: int | None = None
    window: int = 128
    seed: int = 0

    @property
    def hidden_size(self) -> int:
        """Also the MLP's width. By default a multiple of the heads: every TP that loads the heads loads the rest."""
        return self.hidden or self.attention_heads * self.head_dim

    @property
    def rope_dim(self) -> int:
        """Rotary elements of a latent."""
        return self.head_dim

    @property
    def rank(self) -> int:
        """Elements of a latent, and of the queries' low-rank form."""
        return 4 * self.head_dim

    @property
    def key(self) -> str:
        """Name of the model's folder: the same geometry, seed and recipe give the same key."""
        text = json.dumps([RECIPE, asdict(self)], sort_keys=True)
        shape = f"h{self.attention_heads}-kv{self.kv_heads}-l{self.layers}"
        return f"{self.family}-{shape}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    def config(self) -> dict[str, Any]:
        """The model's config.json, as Hugging Face lays it out."""
        families = {
            "qwen3": self._qwen3,
            "llama": self._llama,
            "deepseek": self._deepseek,
            "mellum": self._mellum,
        }
        return self._common() | families[self.family]()

    def _common(self) -> dict[str, Any]:
        return {
            "vocab_size": VOCABULARY,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.hidden_size,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.attention_heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "max_position_embeddings": CONTEXT,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
            "attention_bias": False,
            "tie_word_embeddings": False,
            "bos_token_id": 0,
            "eos_token_id": 2,
            "pad_token_id": 0,
            "torch_dtype": "float32",
        }

    def _qwen3(self) -> dict[str, Any]:
        return {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}

    def _llama(self) -> dict[str, Any]:
        return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "mlp_bias": False}

    def _mellum(self) -> dict[str, Any]:
        """Qwen3 with windows: layers with and without take turns, the first with one."""
        rope = {"rope_type": "default", "rope_theta": 10000.0}
        kinds = [("sliding_attention", "full_attention")[layer % 2] for layer in range(self.layers)]
        return {
            "architectures": ["MellumForCausalLM"],
            "model_type": "mellum",
            "sliding_window": self.window,
            "layer_types": kinds,
            "mlp_layer_types": ["dense"] * self.layers,
            "rope_parameters": dict.fromkeys(("sliding_attention", "full_attention"), rope),
            **_NO_EXPERTS,
        }

    def _deepseek(self) -> dict[str, Any]:
        """DeepSeek-V3 without its experts. SGLang 0.5.23 cannot do without rope scaling, here by 1."""
        return {
            "architectures": ["DeepseekV3ForCausalLM"],
            "model_type": "deepseek_v3",
            "num_key_value_heads": self.attention_heads,
            "head_dim": self.rope_dim,
            "q_lora_rank": self.rank,
            "kv_lora_rank": self.rank,
            "qk_nope_head_dim": self.head_dim,
            "qk_rope_head_dim": self.rope_dim,
            "v_head_dim": self.head_dim,
            "first_k_dense_replace": self.layers,
            "moe_layer_freq": 1,
            "n_routed_experts": 8,
            "n_shared_experts": 1,
            "n_group": 1,
            "topk_group": 1,
            "scoring_func": "sigmoid",
            "topk_method": "noaux_tc",
            "routed_scaling_factor": 1.0,
            "num_nextn_predict_layers": 0,
            "rope_scaling": {
                "type": "yarn",
                "factor": 1.0,
                "beta_fast": 32,
                "beta_slow": 1,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "original_max_position_embeddings": CONTEXT,
            },
            **_NO_EXPERTS,
        }


_NO_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 64, "norm_topk_prob": True}
"""What configs of mixtures must say even where every layer is dense."""
