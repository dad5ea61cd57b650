"""The memory of one rank, as SGLang would register it for a small model, each cell labelled with what belongs there.

A cell is eight bytes: one token's K (or V, or latent, or index key) of one head in one layer, or one channel of a
state. The label names all of that by its place in the whole model, so bytes that arrive say where they came from.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from disagg_cli.connector.conformance.agent import Memory
from disagg_cli.kv import heads
from disagg_cli.kv.heads import HeadRange
from disagg_cli.kv.layout import KVLayout, LayoutKind
from disagg_cli.kv.linear_state import StateTensor

Cells = npt.NDArray[np.uint64]

PAGE = 2
PREFILL_SLOTS, DECODE_SLOTS = 13, 15
"""Pages of each pool: enough that heads which are put into the wrong place still land in the pool, as they would."""
PREFILL_PAGES, DECODE_PAGES = (3, 1, 4), (2, 5, 0)
"""The pages of the one request, in its order, on each side."""
PREFILL_AUX, DECODE_AUX = 1, 2
"""The request's slot among the metadata buffers (first token and so on) of each side."""
CELL = 8


@dataclass(frozen=True, slots=True)
class Buffer:
    """One registered buffer: its cells and address, the bytes of one slot, and the model layer it belongs to."""

    cells: Cells
    address: int
    layer: int

    @property
    def item_len(self) -> int:
        """Bytes of one slot."""
        return self.cells.nbytes // len(self.cells)


@dataclass(frozen=True, slots=True)
class Side:
    """One rank's place: attention TP and rank, the layers of its pipeline stage, and whether it is the prefill."""

    tp: int
    rank: int
    layers: HeadRange
    prefill: bool

    @property
    def slots(self) -> int:
        """Slots of each pool."""
        return PREFILL_SLOTS if self.prefill else DECODE_SLOTS

    @property
    def pages(self) -> tuple[int, ...]:
        """The pages that the request holds."""
        return PREFILL_PAGES if self.prefill else DECODE_PAGES

    @property
    def aux(self) -> int:
        """The slot of the request's metadata."""
        return PREFILL_AUX if self.prefill else DECODE_AUX


@dataclass(slots=True)
class Rank:
    """All buffers of one rank.

    `kv` is the main pool, K's then V's; `state` the tensors of a second component; `aux` the metadata.
    """

    side: Side
    memory: Memory = field(default_factory=Memory)
    kv: list[Buffer] = field(default_factory=list)
    state: list[Buffer] = field(default_factory=list)
    aux: list[Buffer] = field(default_factory=list)

    @property
    def buffers(self) -> list[Buffer]:
        """Every buffer."""
        return self.kv + self.state + self.aux


def build_rank(layout: KVLayout, side: Side, *, filled: bool) -> Rank:
    """Lay out a rank; filled as the request has it there, or empty as a decode rank is before the transfer."""
    rank = Rank(side)
    halves = (0,) if layout.latent else (0, 1)
    full, others = split_layers(layout)
    pool = _Pool(layout.total_kv_heads, (layout.head_dim, layout.v_head_dim or layout.head_dim), 0)
    rank.kv += _pool_buffers(rank, pool, halves, full, filled=filled)
    if layout.kind is LayoutKind.SWA and layout.window:
        window = _Pool(layout.window.kv_heads, (layout.window.head_dim, layout.window.v_head_dim), 1)
        rank.state += _pool_buffers(rank, window, halves, others, filled=filled)
    if layout.index:
        rank.state += _pool_buffers(rank, _Pool(1, (1, 1), 2), (0,), full, filled=filled)
    if layout.state:
        for number, tensor in enumerate(layout.state.tensors):
            rank.state += _state_buffers(rank, tensor, number, others, filled=filled)
    rank.aux.append(_aux_buffer(rank, filled=filled))
    return rank


def split_layers(layout: KVLayout) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The layers of the main pool, and the others."""
    full = layout.main_layer_ids
    return full, tuple(layer for layer in range(layout.num_layers) if layer not in full)


@dataclass(frozen=True, slots=True)
class _Pool:
    """A paged pool: heads of the whole model, cells of a K and of a V head, and a number for its labels."""

    heads: int
    units: tuple[int, int]
    number: int


def _pool_buffers(
    rank: Rank, pool: _Pool, halves: Sequence[int], layers: Sequence[int], *, filled: bool
) -> list[Buffer]:
    """The buffers of one pool in this rank's stage: all K's, then all V's."""
    side = rank.side
    held = heads.owned(pool.heads, side.tp, side.rank)
    made = []
    for half in halves:
        for layer in (layer for layer in layers if side.layers.first <= layer < side.layers.past_end):
            cells = np.zeros((side.slots, PAGE, len(held), pool.units[half]), dtype=np.uint64)
            if filled:
                _fill(cells, side, _label(pool.number, layer, half), held)
            made.append(Buffer(cells, rank.memory.register(cells), layer))
    return made


def _fill(cells: Cells, side: Side, base: int, held: HeadRange) -> None:
    """Label the request's tokens; on prefill, other slots hold another label, so that a stray read shows."""
    if side.prefill:
        cells[:] = (1 << 63) - 1
    head = np.arange(held.first, held.past_end, dtype=np.uint64)[:, None]
    unit = np.arange(cells.shape[3], dtype=np.uint64)[None, :]
    for number, page in enumerate(side.pages):
        for token in range(PAGE):
            cells[page, token] = base + (number * PAGE + token << 24) + (head << np.uint64(8)) + unit


def _state_buffers(
    rank: Rank, tensor: StateTensor, number: int, layers: Sequence[int], *, filled: bool
) -> list[Buffer]:
    """One state tensor of each layer of the stage: this rank's share of each part, one after another."""
    side = rank.side
    shares = [heads.owned(part, side.tp, side.rank) for part in tensor.parts]
    before = [sum(tensor.parts[:i]) for i in range(len(tensor.parts))]
    channels = np.concatenate(
        [np.arange(share.first, share.past_end) + start for share, start in zip(shares, before, strict=True)]
    ).astype(np.uint64)
    made = []
    for layer in (layer for layer in layers if side.layers.first <= layer < side.layers.past_end):
        cells = np.zeros((side.slots, len(channels)), dtype=np.uint64)
        if filled:
            cells[side.pages[0]] = _label(3 + number, layer, 0) + channels
        made.append(Buffer(cells, rank.memory.register(cells), layer))
    return made


def _aux_buffer(rank: Rank, *, filled: bool) -> Buffer:
    cells = np.zeros((4, 1), dtype=np.uint64)
    if filled:
        cells[rank.side.aux] = _label(62, 0, 0)
    return Buffer(cells, rank.memory.register(cells), 0)


def _label(pool: int, layer: int, half: int) -> int:
    """What all cells of one buffer share; never 0, which is an empty cell."""
    return (pool + 1) << 56 | layer << 44 | half << 40
