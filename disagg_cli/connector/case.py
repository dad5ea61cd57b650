"""A prefill/decode pair as the connector sees it, and what can come of it."""

from dataclasses import dataclass
from enum import StrEnum

from disagg_cli.kv import heads
from disagg_cli.kv.layout import LayoutKind


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
    """Attention TP sizes, KV heads before replication, pipeline stages and kind of cache."""

    prefill_tp: int
    decode_tp: int
    kv_heads: int
    pp: int = 1
    decode_pp: int = 1
    kind: LayoutKind = LayoutKind.MHA

    @property
    def size(self) -> tuple[int, int, int]:
        """P, D and T."""
        return self.prefill_tp, self.decode_tp, self.kv_heads

    @property
    def sliced(self) -> bool:
        """Whether heads are cut and spread: P != D and a cache with heads."""
        return self.kind is not LayoutKind.MLA and self.prefill_tp != self.decode_tp

    @property
    def has_state(self) -> bool:
        """Whether the model keeps state besides its KV cache."""
        return self.kind in (LayoutKind.SWA, LayoutKind.HYBRID)

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
