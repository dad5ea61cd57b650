"""The head-slice plan: which heads go from which prefill rank to which decode rank.

`plan_slices` says what is right. What a given SGLang release does instead is `disagg_cli.connector`'s
business. Ranks are attention TP ranks; with DP attention the same plan holds between any two DP ranks that
serve a request.
"""

from dataclasses import dataclass

from disagg_cli.kv import heads
from disagg_cli.kv.heads import HeadRange
from disagg_cli.kv.layout import KVLayout
from disagg_cli.kv.parallelism import Parallelism


@dataclass(frozen=True, slots=True)
class Route:
    """One prefill rank's write to one decode rank; the offsets count heads in each rank's own block."""

    prefill_rank: int
    decode_rank: int
    heads: HeadRange
    src_head_offset: int
    dst_head_offset: int
    bytes_per_token: int

    @property
    def num_heads(self) -> int:
        """Heads that this route carries."""
        return len(self.heads)


@dataclass(frozen=True, kw_only=True, slots=True)
class SlicePlan:
    """All routes between a prefill and a decode worker, by decode rank, then prefill rank."""

    layout: KVLayout
    prefill: Parallelism
    decode: Parallelism
    routes: tuple[Route, ...]
    keys_expected: int
    """Distinct senders that each decode rank waits for (SGLang's `required_prefill_response_num`)."""

    def heads_of_prefill(self, rank: int) -> HeadRange:
        """The heads that a prefill rank holds."""
        return heads.owned(self.layout.total_kv_heads, self.prefill.attention_tp, rank)

    def heads_of_decode(self, rank: int) -> HeadRange:
        """The heads that a decode rank must receive."""
        return heads.owned(self.layout.total_kv_heads, self.decode.attention_tp, rank)


def plan_slices(layout: KVLayout, prefill: Parallelism, decode: Parallelism) -> SlicePlan | None:
    """Plan the slices between two workers; None where the model does not load at one of the sizes.

    Every sender that SGLang contacts writes, so where prefill ranks replicate a head, each replica writes it:
    the same bytes, several times. Where one attention TP is no multiple of the other, the plan shows what
    SGLang's rank mapping reaches, and its coverage shows the rest.
    """
    total, p, d = layout.total_kv_heads, prefill.attention_tp, decode.attention_tp
    if not (heads.loadable(total, p) and heads.loadable(total, d)):
        return None
    routes = tuple(
        route
        for rank in range(d)
        for sender in heads.senders(p, d, rank)
        if sender < p and (route := _route(layout, p, d, sender, rank)).num_heads
    )
    stages = prefill.pp // decode.pp if prefill.pp > decode.pp else 1
    return SlicePlan(
        layout=layout,
        prefill=prefill,
        decode=decode,
        routes=routes,
        keys_expected=len(heads.senders(p, d, 0)) * stages,
    )


def _route(layout: KVLayout, prefill_tp: int, decode_tp: int, sender: int, receiver: int) -> Route:
    """Meet what the sender holds with what the receiver needs."""
    source = heads.owned(layout.total_kv_heads, prefill_tp, sender)
    target = heads.owned(layout.total_kv_heads, decode_tp, receiver)
    moved = source.meet(target)
    return Route(
        prefill_rank=sender,
        decode_rank=receiver,
        heads=moved,
        src_head_offset=moved.first - source.first,
        dst_head_offset=moved.first - target.first,
        bytes_per_token=len(moved) * layout.bytes_per_head,
    )
