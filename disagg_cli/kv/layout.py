"""The KV cache of a model: which pools it has, how many heads, how large, in how many layers."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from disagg_cli.errors import PlanRefused, UsageError
from disagg_cli.kv.linear_state import LinearState

BYTES_PER_ELEMENT: Mapping[str, int] = MappingProxyType(
    {"bfloat16": 2, "float16": 2, "float32": 4, "fp8_e4m3": 1, "fp8_e5m2": 1}
)
"""Element size of each KV dtype, by the names of SGLang's `--kv-cache-dtype` and of a model's config.json."""


MOST_LAYERS = 10_000
"""More layers than this are no model."""


class LayoutKind(StrEnum):
    """What a token's cache consists of; each kind moves by its own rules in the connector."""

    MHA = "mha"  # K and V per head: MHA, GQA, MQA
    MLA = "mla"  # one latent vector, the same on every rank
    SWA = "swa"  # K and V per head, sliding-window layers in a pool of their own
    HYBRID = "hybrid"  # K and V per head (or a latent), and states of linear-attention or Mamba layers


class UnsupportedLayout(PlanRefused):
    """A model whose KV cache disagg does not model; it says why instead of guessing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowPool:
    """K and V of sliding-window layers, in a pool of their own; a request keeps its last `tokens` tokens there."""

    layers: int
    tokens: int
    kv_heads: int
    head_dim: int
    v_head_dim: int


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexCache:
    """Keys of sparse attention's indexer: the same on every rank, one per token and layer."""

    layers: int
    bytes_per_key: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CompressedPool:
    """Latents that stand for several tokens each; as a ring, the `tokens` last ones with an entry for each."""

    layers: int
    tokens: int
    bytes_per_entry: int


@dataclass(frozen=True, kw_only=True, slots=True)
class KVLayout:
    """The KV cache of one model, all ranks together.

    `total_kv_heads` counts the model's KV heads before any replication; a latent counts as one head. `kv_layers`
    numbers the layers in the main pool, all of them where it is None; `v_head_dim` is the size of a V head where it is
    not a K head's; `latent` marks a latent in place of K and V; `draft_layers` are the layers of a built-in draft
    model, which are not counted. Raises UsageError where a size is not a positive number or the dtype is not known.
    """

    name: str
    total_kv_heads: int
    num_layers: int
    head_dim: int
    kv_dtype: str = "bfloat16"
    attention_heads: int | None = None
    kind: LayoutKind = LayoutKind.MHA
    source: str = ""
    kv_layers: tuple[int, ...] | None = None
    v_head_dim: int | None = None
    latent: bool = False
    window: WindowPool | None = None
    index: IndexCache | None = None
    state: LinearState | None = None
    compressed: tuple[CompressedPool, ...] = ()
    ring: CompressedPool | None = None
    draft_layers: int = 0

    def __post_init__(self) -> None:
        for field in ("total_kv_heads", "num_layers", "head_dim"):
            if getattr(self, field) < 1:
                raise UsageError(f"{field} must be at least 1, not {getattr(self, field)}", where=self.name)
        if self.num_layers > MOST_LAYERS:
            raise UsageError(f"num_layers must be at most {MOST_LAYERS}, not {self.num_layers}", where=self.name)
        if self.kv_dtype not in BYTES_PER_ELEMENT:
            raise UsageError(
                f"unknown KV dtype {self.kv_dtype!r}",
                where=self.name,
                fix=f"one of {', '.join(BYTES_PER_ELEMENT)}",
            )

    @property
    def main_layers(self) -> int:
        """Layers in the main pool."""
        return self.num_layers if self.kv_layers is None else len(self.kv_layers)

    @property
    def main_layer_ids(self) -> tuple[int, ...]:
        """Which layers are in the main pool."""
        return tuple(range(self.num_layers)) if self.kv_layers is None else self.kv_layers

    @property
    def components(self) -> int:
        """Kinds of state that the connector sends beside the KV cache."""
        if self.compressed:
            return 2  # windows, and the compressor's own state
        return sum(part is not None for part in (self.window, self.index, self.state))

    @property
    def asymmetric(self) -> bool:
        """Whether a V head is of another size than a K head."""
        return not self.latent and self.v_head_dim not in (None, self.head_dim)

    @property
    def elements_per_head(self) -> int:
        """Elements of one token's K and V of one head in one layer; a latent has no V of its own."""
        return self.head_dim if self.latent else self.head_dim + (self.v_head_dim or self.head_dim)

    @property
    def bytes_per_head(self) -> int:
        """Bytes of one token's K and V of one head, all layers of the main pool."""
        return self.elements_per_head * self.element_size * self.main_layers

    @property
    def window_bytes_per_head(self) -> int:
        """Bytes of one token's K and V of one head, all sliding-window layers."""
        window = self.window
        return (window.head_dim + window.v_head_dim) * self.element_size * window.layers if window else 0

    @property
    def index_bytes_per_token(self) -> int:
        """Bytes of one token's index keys, all layers."""
        return self.index.bytes_per_key * self.index.layers if self.index else 0

    @property
    def replicated_bytes_per_token(self) -> int:
        """Bytes of one token that every rank has whole: index keys, compressed latents and their ring."""
        ring = self.ring.layers * self.ring.bytes_per_entry if self.ring else 0
        return self.index_bytes_per_token + ring + self._shares

    @property
    def element_size(self) -> int:
        """Bytes of one element."""
        return BYTES_PER_ELEMENT[self.kv_dtype]

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token in all pools, all heads, counted once; of compressed latents its share."""
        window = self.window.kv_heads * self.window_bytes_per_head if self.window else 0
        return self.total_kv_heads * self.bytes_per_head + window + self.replicated_bytes_per_token

    @property
    def state_bytes(self) -> int:
        """Bytes of one request's linear-attention or Mamba state, all layers; the same for every length."""
        return self.state.bytes_per_request if self.state else 0

    def request_bytes(self, tokens: int) -> int:
        """Bytes of one request of so many tokens, counted once; window layers keep the last tokens only."""
        main = self.total_kv_heads * self.bytes_per_head + self.index_bytes_per_token
        kept = min(tokens, self.window.tokens) if self.window else 0
        window = self.window.kv_heads * self.window_bytes_per_head if self.window else 0
        ring = self.ring
        turned = min(tokens, ring.tokens) * ring.layers * ring.bytes_per_entry if ring else 0
        packed = sum(-(-tokens // pool.tokens) * pool.layers * pool.bytes_per_entry for pool in self.compressed)
        return tokens * main + kept * window + self.state_bytes + turned + packed

    @property
    def _shares(self) -> int:
        """A token's share of the compressed latents, in bytes, rounded up."""
        parts = (pool.layers * pool.bytes_per_entry / pool.tokens for pool in self.compressed)
        return math.ceil(sum(parts))
