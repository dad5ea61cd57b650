"""Is every head slot of every decode rank written, and from the right head? Proven by intervals.

A slot is the place of one head in a decode rank's KV memory; slot s of rank r belongs to head `owned(r).first
+ s`. The check does not trust a route's `heads`: it works out what the sender holds at the offset that it
reads.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from disagg_cli.kv.heads import HeadRange
from disagg_cli.kv.linear_state import StateRoute, StateTensor
from disagg_cli.kv.plan import Route, SlicePlan


@dataclass(frozen=True, slots=True)
class Gap:
    """Heads of a decode rank that nobody writes."""

    decode_rank: int
    heads: HeadRange


@dataclass(frozen=True, slots=True)
class Overlap:
    """Heads of a decode rank that several prefill ranks write, and not all with the same head."""

    decode_rank: int
    heads: HeadRange
    prefill_ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Wrong:
    """A write that puts other heads where `expected` belong, or that leaves the decode rank's block.

    `received` are the model's heads that the sender reads; None where it reads past its own block.
    """

    decode_rank: int
    prefill_rank: int
    expected: HeadRange
    received: HeadRange | None


@dataclass(frozen=True, slots=True)
class StateFault:
    """Channels of a decode rank's state tensor, by its own counting, that nobody writes or that get others' values."""

    decode_rank: int
    tensor: str
    channels: HeadRange
    received: HeadRange | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Coverage:
    """The verdict on a set of writes, each fault named with its ranks and heads.

    `replica_writes` counts head slots written again with the same head by another replica: traffic, not a
    fault.
    """

    gaps: tuple[Gap, ...] = ()
    overlaps: tuple[Overlap, ...] = ()
    wrong: tuple[Wrong, ...] = ()
    replica_writes: int = 0
    state: tuple[StateFault, ...] = ()

    @property
    def ok(self) -> bool:
        """Every slot is written, and only with its own head."""
        return not (self.gaps or self.overlaps or self.wrong or self.state)


@dataclass(frozen=True, slots=True)
class _Write:
    """A write to a decode rank's slots; `shift` is the head that a slot gets, less the one that belongs there."""

    start: int
    end: int
    sender: int
    shift: int


def cover(plan: SlicePlan) -> Coverage:
    """Check every decode rank of a plan. Linear in routes, apart from sorting each rank's few."""
    by_rank: dict[int, list[Route]] = defaultdict(list)
    for route in plan.routes:
        by_rank[route.decode_rank].append(route)
    gaps: list[Gap] = []
    overlaps: list[Overlap] = []
    replicas = 0
    for rank in range(plan.decode.attention_tp):
        target = plan.heads_of_decode(rank)
        for heads, writers in _segments([_write(plan, r) for r in by_rank[rank]], target):
            if not writers:
                gaps.append(Gap(rank, heads))
            elif len({writer.shift for writer in writers}) > 1:
                overlaps.append(Overlap(rank, heads, tuple(writer.sender for writer in writers)))
            else:
                replicas += (len(writers) - 1) * len(heads)
    return Coverage(
        gaps=tuple(gaps),
        overlaps=tuple(overlaps),
        wrong=tuple(_wrong(plan, plan.routes)),
        replica_writes=replicas,
        state=tuple(_state_faults(plan)),
    )


def _state_faults(plan: SlicePlan) -> Iterator[StateFault]:
    """Walk each decode rank's state tensors from their first channel to their last."""
    state, tp = plan.layout.state, plan.decode.attention_tp
    if state is None:
        return
    writes: dict[tuple[int, str], list[StateRoute]] = defaultdict(list)
    for route in plan.state_routes:
        writes[route.decode_rank, route.tensor].append(route)
    for rank in range(tp):
        for tensor in state.tensors:
            found = sorted(writes[rank, tensor.name], key=lambda route: route.dst_offset)
            yield from _tensor_faults(rank, tensor, tp, found)


def _tensor_faults(rank: int, tensor: StateTensor, tp: int, writes: Iterable[StateRoute]) -> Iterator[StateFault]:
    """Compare what arrives at each channel with what belongs there; parts lie one after another."""
    past = 0
    for write in writes:
        if write.dst_offset > past:
            yield StateFault(rank, tensor.name, HeadRange(past, write.dst_offset), None)
        begins = sum(tensor.parts[: write.part]) // tp
        belongs = rank * tensor.parts[write.part] // tp + write.dst_offset - begins
        past = max(past, write.dst_offset + len(write.channels))
        if write.channels.first != belongs:
            yield StateFault(rank, tensor.name, HeadRange(write.dst_offset, past), write.channels)
    if past < tensor.channels // tp:
        yield StateFault(rank, tensor.name, HeadRange(past, tensor.channels // tp), None)


def _write(plan: SlicePlan, route: Route) -> _Write:
    """Translate a route into the slots of its decode rank."""
    start = route.dst_head_offset
    head = plan.heads_of_prefill(route.prefill_rank).first + route.src_head_offset
    expected = plan.heads_of_decode(route.decode_rank).first + start
    return _Write(start, start + route.num_heads, route.prefill_rank, head - expected)


def _segments(writes: list[_Write], target: HeadRange) -> Iterator[tuple[HeadRange, list[_Write]]]:
    """Cut a decode rank's block at every edge of a write; give each piece its heads and writers."""
    size = len(target)
    starting: dict[int, list[_Write]] = defaultdict(list)
    edges = {0, size}
    for write in writes:
        starting[max(0, write.start)].append(write)
        edges.update(edge for edge in (write.start, write.end) if 0 < edge < size)
    active: list[_Write] = []
    ordered = sorted(edges)
    for edge, after in pairwise(ordered):
        active = [write for write in active if write.end > edge] + starting[edge]
        yield HeadRange(target.first + edge, target.first + after), active


def _wrong(plan: SlicePlan, routes: Iterable[Route]) -> Iterator[Wrong]:
    """Name every route that reads or writes outside its block, or moves another head than belongs there."""
    for route in routes:
        source = plan.heads_of_prefill(route.prefill_rank)
        target = plan.heads_of_decode(route.decode_rank)
        first, slot = source.first + route.src_head_offset, target.first + route.dst_head_offset
        reads_inside = 0 <= route.src_head_offset <= len(source) - route.num_heads
        writes_inside = 0 <= route.dst_head_offset <= len(target) - route.num_heads
        if reads_inside and writes_inside and first == slot:
            continue
        received = HeadRange(first, first + route.num_heads) if reads_inside else None
        yield Wrong(route.decode_rank, route.prefill_rank, HeadRange(slot, slot + route.num_heads), received)
