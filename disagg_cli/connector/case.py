"""A prefill/decode pair as the connector sees it, and what can come of it."""

from dataclasses import dataclass
from enum import StrEnum

from disagg_cli.kv import heads
from disagg_cli.kv.layout import KVLayout, LayoutKind
from disagg_cli.kv.parallelism import Parallelism
from disagg_cli.kv.stages import main_layers_per_stage


class Outcome(StrEnum):
    """What the first request shows."""

    OK = "ok"
    HANG = "hang"
    WRONG_BYTES = "wrong_bytes"
    EARLY_DONE = "early_done"
    NOT_FOUND = "not_found"
    ZERO_DIVISION = "zero_division"
    EMPTY_TRANSFER = "empty_transfer"
    ASSERTION = "assertion"
    RUNTIME_ERROR = "runtime_error"
    UNSUPPORTED = "unsupported"


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """Attention TP sizes, KV heads before replication, pipeline stages, and what kind of cache moves.

    `latent` marks hybrids whose attention layers keep a latent (MLA always does); `indexed` a sparse-attention index
    beside it; `components` counts kinds of state; `cut_whole` a state of several parts that the connector takes for
    one; `window_heads` the KV heads of sliding-window layers; `stage_layers` the main pool's layers in each prefill
    stage, where they are known.
    """

    prefill_tp: int
    decode_tp: int
    kv_heads: int
    pp: int = 1
    decode_pp: int = 1
    kind: LayoutKind = LayoutKind.MHA
    latent: bool = False
    indexed: bool = False
    components: int = 1
    cut_whole: bool = False
    asymmetric: bool = False
    window_heads: int | None = None
    stage_layers: tuple[int, ...] = ()

    @property
    def size(self) -> tuple[int, int, int]:
        """P, D and T."""
        return self.prefill_tp, self.decode_tp, self.kv_heads

    @property
    def uneven(self) -> bool:
        """Whether the sizes of both sides differ."""
        return self.prefill_tp != self.decode_tp

    @property
    def whole(self) -> bool:
        """Whether a rank's KV moves as it is: a latent, which every rank has."""
        return self.latent or self.kind is LayoutKind.MLA

    @property
    def sliced(self) -> bool:
        """Whether heads are cut and spread: P != D and a cache with heads."""
        return self.uneven and not self.whole

    @property
    def has_state(self) -> bool:
        """Whether the model keeps state besides its KV cache."""
        return self.indexed or self.kind in (LayoutKind.SWA, LayoutKind.HYBRID)

    @property
    def tp_senders(self) -> int:
        """Prefill TP ranks that send to one decode rank; the others that it contacts for MLA send nothing."""
        if self.kind is LayoutKind.MLA:
            return 1
        return len(heads.senders(self.prefill_tp, self.decode_tp, 0))

    @property
    def stages(self) -> int:
        """Prefill pipeline stages that send to one decode rank."""
        return 1 if self.pp == self.decode_pp else self.pp

    @property
    def senders(self) -> int:
        """Senders that one decode rank waits for (SGLang's `required_prefill_response_num`)."""
        return self.tp_senders * self.stages

    @property
    def ragged(self) -> bool:
        """Whether some stage's layers do not divide the model's: the connector then mistakes V for a draft model's."""
        total = sum(self.stage_layers)
        return any(layers and total % layers for layers in self.stage_layers)


def case_of(layout: KVLayout, prefill: Parallelism, decode: Parallelism) -> Case:
    """The case that a layout and two sides make."""
    return Case(
        prefill_tp=prefill.attention_tp,
        decode_tp=decode.attention_tp,
        kv_heads=layout.total_kv_heads,
        pp=prefill.pp,
        decode_pp=decode.pp,
        kind=layout.kind,
        latent=layout.latent,
        indexed=layout.index is not None or bool(layout.compressed),
        components=layout.components,
        cut_whole=layout.state is not None and layout.state.cut_whole,
        asymmetric=layout.asymmetric,
        window_heads=layout.window.kv_heads if layout.window else None,
        stage_layers=main_layers_per_stage(layout, prefill.pp),
    )
