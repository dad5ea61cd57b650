"""Replicated KV heads, hidden from arithmetic that cannot count them. Pure.

The stock connector (SGLang 0.5.11 to 0.5.23) divides heads rightly as long as no head stands on more than one decode
rank. So it is shown a deployment in which none does: decode ranks that take the same head from the same prefill rank
look like one rank, and a prefill rank that shares its head with others looks as if that head were its own.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """What the stock arithmetic is told: decode's attention TP, the decode rank, and the model's KV heads."""

    decode_tp: int
    decode_rank: int
    kv_heads: int

    def groups(self, prefill_tp: int) -> int:
        """How many different slices of a token one prefill rank sends; the source descriptors are cut by it."""
        return max(1, self.decode_tp // prefill_tp)


def without_replicas(prefill_tp: int, decode_tp: int, decode_rank: int, kv_heads: int) -> View:
    """Show a decode rank so that no head is replicated between it and the prefill rank that feeds it.

    Attention TP sizes, one of which divides the other. Only a wider decode needs it (classes F, G and H of
    connector/head_maths.py); anything else is shown as it is.
    """
    if prefill_tp >= decode_tp:
        return View(decode_tp=decode_tp, decode_rank=decode_rank, kv_heads=kv_heads)
    heads = max(kv_heads, prefill_tp)
    ranks = min(decode_tp, heads)
    return View(decode_tp=ranks, decode_rank=decode_rank // (decode_tp // ranks), kv_heads=heads)
