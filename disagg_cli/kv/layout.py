"""The KV cache of a model: how many heads, how large, in how many layers."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from disagg_cli.errors import PlanRefused, UsageError

BYTES_PER_ELEMENT: Mapping[str, int] = MappingProxyType(
    {"bfloat16": 2, "float16": 2, "float32": 4, "fp8_e4m3": 1, "fp8_e5m2": 1}
)
"""Element size of each KV dtype, by the names of SGLang's `--kv-cache-dtype` and of a model's config.json."""


class LayoutKind(StrEnum):
    """What a token's cache consists of; each kind moves by its own rules in the connector."""

    MHA = "mha"  # K and V per head: MHA, GQA, MQA
    MLA = "mla"  # one latent vector, the same on every rank
    SWA = "swa"  # K and V per head, sliding-window layers in a pool of their own
    HYBRID = "hybrid"  # K and V per head, and states of linear-attention or Mamba layers


class UnsupportedLayout(PlanRefused):
    """A model whose KV cache disagg does not model; it says why instead of guessing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KVLayout:
    """The KV cache of one model, all ranks together.

    `total_kv_heads` counts the model's KV heads before any replication. Raises UsageError where a size is not
    a positive number or the dtype is not known.
    """

    name: str
    total_kv_heads: int
    num_layers: int
    head_dim: int
    kv_dtype: str = "bfloat16"
    attention_heads: int | None = None
    kind: LayoutKind = LayoutKind.MHA
    source: str = ""

    def __post_init__(self) -> None:
        for field in ("total_kv_heads", "num_layers", "head_dim"):
            if getattr(self, field) < 1:
                raise UsageError(f"{field} must be at least 1, not {getattr(self, field)}", where=self.name)
        if self.kv_dtype not in BYTES_PER_ELEMENT:
            raise UsageError(
                f"unknown KV dtype {self.kv_dtype!r}",
                where=self.name,
                fix=f"one of {', '.join(BYTES_PER_ELEMENT)}",
            )

    @property
    def bytes_per_head(self) -> int:
        """Bytes of one token's K and V of one head, all layers."""
        return 2 * self.head_dim * BYTES_PER_ELEMENT[self.kv_dtype] * self.num_layers

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token's K and V, all heads and layers, counted once."""
        return self.total_kv_heads * self.bytes_per_head
