"""Which heads a release's NIXL connector really moves, so far as they differ from the plan.

Each function answers for P != D and K and V per head, where both sizes load and one divides the other.
Sources: `send_kvcache_slice` and `_init_hetero_tp_prep_handle` of the wheels, executed for P, D in 1..16 and
T in 1..32.
"""

from disagg_cli.kv import heads


def gathers_right(prefill_tp: int, decode_tp: int, total: int) -> bool:
    """Whether per-rank head maths (<= 0.5.10) places P > D right.

    It writes rank r's heads at r * heads per rank, also where a later decode rank's block starts again from
    0, and counts a replicated head once per replica.
    """
    return decode_tp == 1 and total >= prefill_tp


def misled_by_offset(prefill_tp: int, decode_tp: int, total: int) -> tuple[int, ...]:
    """The decode ranks whose heads per-rank head maths (<= 0.5.10) puts into the wrong place (P > D)."""
    if gathers_right(prefill_tp, decode_tp, total):
        return ()
    return tuple(range(1 if total >= prefill_tp else 0, decode_tp))


def divides_by_zero(prefill_tp: int, decode_tp: int, total: int) -> bool:
    """Whether per-rank head maths (<= 0.5.10) finds no head per decode rank, and divides by that."""
    return heads.heads_per_rank(total, prefill_tp) * prefill_tp // decode_tp == 0


def modulo_head(prefill_tp: int, decode_tp: int, total: int, decode_rank: int) -> int:
    """The head that a decode rank gets where head slices are picked by modulo (0.5.11 to 0.5.12.post1)."""
    sender = heads.senders(prefill_tp, decode_tp, decode_rank)[0]
    source = heads.owned(total, prefill_tp, sender)
    return source.first + decode_rank * heads.heads_per_rank(total, decode_tp) % len(source)


def misled_by_modulo(prefill_tp: int, decode_tp: int, total: int) -> tuple[int, ...]:
    """The decode ranks to which picking by modulo gives a head that is not theirs (P < D)."""
    return tuple(
        rank
        for rank in range(decode_tp)
        if modulo_head(prefill_tp, decode_tp, total, rank) != heads.owned(total, decode_tp, rank).first
    )


def head_groups(prefill_tp: int, decode_tp: int, total: int, *, replicated_decode: bool) -> int:
    """Groups into which prepared descriptor lists (>= 0.5.13) cut each token of a prefill rank's block."""
    if prefill_tp > decode_tp:
        return 1
    shared = heads.replication(total, decode_tp) if replicated_decode else 1
    return decode_tp // prefill_tp // shared


def heads_per_descriptor(prefill_tp: int, decode_tp: int, total: int) -> int:
    """Heads in one descriptor: the sender's block where ranks are gathered, else the receiver's."""
    return heads.heads_per_rank(total, max(prefill_tp, decode_tp))


def window_splits(prefill_tp: int, decode_tp: int, total: int, window_heads: int) -> bool:
    """Whether sliding-window KV splits into as many pieces on both sides as the main pool's heads say it should.

    The connector (0.5.22 and later) counts the main pool's heads also where a window layer has others, and refuses
    sizes that then do not fit (`_get_mha_head_slice_blocks`).
    """
    held = heads.heads_per_rank(window_heads, prefill_tp)
    needed = heads.heads_per_rank(window_heads, decode_tp)
    counted = heads.heads_per_rank(total, prefill_tp), heads.heads_per_rank(total, decode_tp)
    return held % counted[0] == 0 and held // counted[0] * counted[1] == needed
