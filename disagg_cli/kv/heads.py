"""Rank arithmetic: which KV heads a rank holds, and which prefill ranks a decode rank asks for them.

This is the only module that turns ranks into heads. Everything is closed form, in *attention* TP ranks.
Read from `compute_head_slice_params` and `_resolve_rank_mapping` of SGLang 0.5.23
(`srt/disaggregation/common/staging_buffer.py`, `common/conn.py`) and from how its attention layers shard KV
heads.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HeadRange:
    """Consecutive KV heads, `first` inclusive, `past_end` exclusive."""

    first: int
    past_end: int

    def __len__(self) -> int:
        return max(0, self.past_end - self.first)

    def meet(self, other: "HeadRange") -> "HeadRange":
        """Return the heads in both ranges; empty where they do not touch."""
        first = max(self.first, other.first)
        return HeadRange(first, max(first, min(self.past_end, other.past_end)))

    def __str__(self) -> str:
        last = self.past_end - 1
        return f"{self.first}" if last == self.first else f"{self.first}-{last}"


def loadable(total: int, tp: int) -> bool:
    """Whether `total` KV heads load at attention TP `tp`: whole heads per rank, or whole ranks per head."""
    return total % tp == 0 or tp % total == 0


def aligned(prefill_tp: int, decode_tp: int) -> bool:
    """Whether one attention TP is a multiple of the other; SGLang divides them and drops the rest."""
    return max(prefill_tp, decode_tp) % min(prefill_tp, decode_tp) == 0


def heads_per_rank(total: int, tp: int) -> int:
    """KV heads that each rank stores; never less than one."""
    return max(1, total // tp)


def replication(total: int, tp: int) -> int:
    """Ranks that store the same KV head."""
    return max(1, tp // total)


def owned(total: int, tp: int, rank: int) -> HeadRange:
    """The heads of one rank: a block of them, or, where ranks outnumber heads, one head shared by neighbours.

    Neighbouring ranks share a head (0, 0, 1, 1), never every other one (0, 1, 0, 1): SGLang loads the weights
    so, and a connector that maps by modulo moves the wrong heads (sglang #23746, #30997, #31968).
    """
    first = rank // replication(total, tp) * heads_per_rank(total, tp)
    return HeadRange(first, first + heads_per_rank(total, tp))


def senders(prefill_tp: int, decode_tp: int, decode_rank: int) -> range:
    """The prefill ranks that a decode rank asks, as SGLang divides the two sizes.

    Where the sizes do not divide, this is what SGLang does all the same: prefill ranks are left out, or a
    decode rank asks a prefill rank that does not exist.
    """
    if prefill_tp > decode_tp:
        ratio = prefill_tp // decode_tp
        return range(decode_rank * ratio, (decode_rank + 1) * ratio)
    rank = decode_rank // (decode_tp // prefill_tp)
    return range(rank, rank + 1)
