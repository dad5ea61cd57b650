"""The head-slice plan: which heads go from which prefill rank to which decode rank.

`plan_slices` says what is right. What a given SGLang release does instead is `disagg_cli.connector`'s business. Ranks
are attention TP ranks of one pipeline stage; with DP attention the same plan holds between any two DP groups that serve
a request, and with pipeline stages every stage repeats it for its own layers.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from disagg_cli.kv import heads
from disagg_cli.kv.heads import HeadRange
from disagg_cli.kv.layout import KVLayout, LayoutKind
from disagg_cli.kv.linear_state import StateRoute, state_routes
from disagg_cli.kv.parallelism import Parallelism
from disagg_cli.kv.stages import StageRoute, stage_routes


@dataclass(frozen=True, slots=True)
class Route:
    """One prefill rank's write to one decode rank; the offsets count heads in each rank's own block.

    A latent is one head. `bytes_per_token` counts all layers and pools that this route carries.
    """

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


@dataclass(frozen=True, slots=True)
class DummyContact:
    """A prefill rank that a decode rank contacts and that sends nothing; without the contact it would wait for ever."""

    prefill_rank: int
    decode_rank: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SlicePlan:
    """All routes between a prefill and a decode worker, by decode rank, then prefill rank."""

    layout: KVLayout
    prefill: Parallelism
    decode: Parallelism
    routes: tuple[Route, ...]
    keys_expected: int
    """Distinct senders that each decode rank waits for (SGLang's `required_prefill_response_num`)."""
    dummies: tuple[DummyContact, ...] = ()
    stages: tuple[StageRoute, ...] = ()
    state_routes: tuple[StateRoute, ...] = field(default=(), repr=False)

    def heads_of_prefill(self, rank: int) -> HeadRange:
        """The heads that a prefill rank holds."""
        return heads.owned(self.layout.total_kv_heads, self.prefill.attention_tp, rank)

    def heads_of_decode(self, rank: int) -> HeadRange:
        """The heads that a decode rank must receive."""
        return heads.owned(self.layout.total_kv_heads, self.decode.attention_tp, rank)


def loads(layout: KVLayout, tp: int) -> bool:
    """Whether every pool and state of a model spreads over so many attention TP ranks."""
    pools = [layout.total_kv_heads] + ([layout.window.kv_heads] if layout.window else [])
    return all(heads.loadable(total, tp) for total in pools) and (layout.state is None or layout.state.loadable(tp))


def plan_slices(layout: KVLayout, prefill: Parallelism, decode: Parallelism) -> SlicePlan | None:
    """Plan the slices between two workers; None where the model does not load at one of the sizes.

    Every sender that SGLang contacts writes, so where prefill ranks replicate a head, each replica writes it: the same
    bytes, several times. Only for MLA does the first of them alone write, and the others are contacted in vain. Where
    one attention TP is no multiple of the other, the plan shows what SGLang's rank mapping reaches, and its coverage
    shows the rest.
    """
    p, d = prefill.attention_tp, decode.attention_tp
    if not (loads(layout, p) and loads(layout, d)):
        return None
    contacts = [(sender, rank) for rank in range(d) for sender in heads.senders(p, d, rank) if sender < p]
    writers = set(_writers(layout, p, d))
    made = (_route(layout, p, d, *contact) for contact in contacts if contact in writers)
    stages = prefill.pp // decode.pp if prefill.pp > decode.pp else 1
    return SlicePlan(
        layout=layout,
        prefill=prefill,
        decode=decode,
        routes=tuple(route for route in made if route.num_heads),
        keys_expected=(1 if layout.kind is LayoutKind.MLA else len(heads.senders(p, d, 0))) * stages,
        dummies=tuple(DummyContact(*contact) for contact in contacts if contact not in writers),
        stages=stage_routes(layout.num_layers, prefill.pp, decode.pp),
        state_routes=_state(layout, p, d),
    )


def _writers(layout: KVLayout, prefill_tp: int, decode_tp: int) -> Iterator[tuple[int, int]]:
    """Which contacts really send: all, or for MLA the first of each decode rank's."""
    for rank in range(decode_tp):
        asked = heads.senders(prefill_tp, decode_tp, rank)
        yield from ((sender, rank) for sender in (asked[:1] if layout.kind is LayoutKind.MLA else asked))


def _state(layout: KVLayout, prefill_tp: int, decode_tp: int) -> tuple[StateRoute, ...]:
    if layout.state is None or not heads.aligned(prefill_tp, decode_tp):
        return ()
    return tuple(state_routes(layout.state, prefill_tp, decode_tp))


def _route(layout: KVLayout, prefill_tp: int, decode_tp: int, sender: int, receiver: int) -> Route:
    """Meet what the sender holds with what the receiver needs."""
    source = heads.owned(layout.total_kv_heads, prefill_tp, sender)
    target = heads.owned(layout.total_kv_heads, decode_tp, receiver)
    moved = source.meet(target)
    size = len(moved) * layout.bytes_per_head + layout.replicated_bytes_per_token
    if layout.window:
        total = layout.window.kv_heads
        shared = heads.owned(total, prefill_tp, sender).meet(heads.owned(total, decode_tp, receiver))
        size += len(shared) * layout.window_bytes_per_head
    return Route(
        prefill_rank=sender,
        decode_rank=receiver,
        heads=moved,
        src_head_offset=moved.first - source.first,
        dst_head_offset=moved.first - target.first,
        bytes_per_token=size,
    )
