"""The geometry of a random-weight model. Pure; rehearsal/ writes it to disk."""

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

RECIPE = 1
"""Raised when the same SyntheticModel would be written differently, so that caches do not serve the old one."""

VOCABULARY = 512


@dataclass(frozen=True, kw_only=True, slots=True)
class SyntheticModel:
    """Geometry of a dense Qwen3-like model. Sizes in heads, layers and elements."""

    attention_heads: int = 8
    kv_heads: int = 4
    layers: int = 2
    head_dim: int = 16
    seed: int = 0

    @property
    def hidden_size(self) -> int:
        """Also the MLP's width: a multiple of the heads, so that every TP that loads the heads loads the rest."""
        return self.attention_heads * self.head_dim

    @property
    def key(self) -> str:
        """Name of the model's folder: the same geometry, seed and recipe give the same key."""
        text = json.dumps([RECIPE, asdict(self)], sort_keys=True)
        shape = f"h{self.attention_heads}-kv{self.kv_heads}-l{self.layers}"
        return f"qwen3-{shape}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    def config(self) -> dict[str, Any]:
        """The model's config.json, as Hugging Face lays it out."""
        return {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "vocab_size": VOCABULARY,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.hidden_size,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.attention_heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "max_position_embeddings": 32768,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
            "attention_bias": False,
            "tie_word_embeddings": False,
            "bos_token_id": 0,
            "eos_token_id": 2,
            "pad_token_id": 0,
            "torch_dtype": "float32",
        }
