"""State of linear-attention and Mamba layers: tensors of fixed size per request, and how ranks share them.

A tensor consists of parts that are spread over ranks apart: a rank's convolution state is `cat(q, k, v)` of its own
shares, not a share of the whole `cat(q, k, v)`. Source: `Mamba2StateShape` and `KimiLinearStateShape` in SGLang 0.5.23
(`srt/configs/mamba_utils.py`), `mamba_v2_sharded_weight_loader` (`srt/layers/attention/mamba/mamba.py`).
"""

from collections.abc import Iterator
from dataclasses import dataclass

from disagg_cli.kv import heads
from disagg_cli.kv.heads import HeadRange


@dataclass(frozen=True, kw_only=True, slots=True)
class StateTensor:
    """One state tensor of one layer, all ranks together.

    `parts` are the channels of each part along the axis that is spread over ranks. `declared` says whether SGLang tells
    its connector about the parts; where it does not, the connector takes the tensor for one part.
    """

    name: str
    parts: tuple[int, ...]
    bytes_per_channel: int
    declared: bool = True

    @property
    def channels(self) -> int:
        """Channels of all parts."""
        return sum(self.parts)


@dataclass(frozen=True, kw_only=True, slots=True)
class LinearState:
    """The state of all linear-attention or Mamba layers; `heads` are counts that attention TP must divide."""

    layers: int
    tensors: tuple[StateTensor, ...]
    heads: tuple[int, ...] = ()

    @property
    def bytes_per_request(self) -> int:
        """Bytes of one request, all layers and tensors, counted once."""
        return self.layers * sum(tensor.channels * tensor.bytes_per_channel for tensor in self.tensors)

    @property
    def cut_whole(self) -> bool:
        """Whether the connector takes a tensor of several parts for one, and so cuts it wrongly."""
        return any(len(tensor.parts) > 1 and not tensor.declared for tensor in self.tensors)

    def loadable(self, tp: int) -> bool:
        """Whether the state spreads evenly over so many ranks; SGLang does not replicate it."""
        counts = (*self.heads, *(part for tensor in self.tensors for part in tensor.parts))
        return all(count % tp == 0 for count in counts)


@dataclass(frozen=True, slots=True)
class StateRoute:
    """Channels of one part that a prefill rank writes to a decode rank; offsets count channels in each rank's own."""

    prefill_rank: int
    decode_rank: int
    tensor: str
    part: int
    channels: HeadRange
    src_offset: int
    dst_offset: int
    bytes_per_request: int


def state_routes(state: LinearState, prefill_tp: int, decode_tp: int) -> Iterator[StateRoute]:
    """Plan every write of one request's state, by decode rank, tensor, part, prefill rank.

    A part is a block of channels, and channels are spread over ranks as KV heads are, without replication.
    """
    for receiver in range(decode_tp):
        for tensor in state.tensors:
            for part in range(len(tensor.parts)):
                for sender in heads.senders(prefill_tp, decode_tp, receiver):
                    yield _route(state.layers, tensor, part, (prefill_tp, sender), (decode_tp, receiver))


def _route(layers: int, tensor: StateTensor, part: int, source: tuple[int, int], target: tuple[int, int]) -> StateRoute:
    """Meet what the sender holds of a part with what the receiver needs of it. Sides are (TP, rank)."""
    held = heads.owned(tensor.parts[part], *source)
    needed = heads.owned(tensor.parts[part], *target)
    moved = held.meet(needed)
    return StateRoute(
        prefill_rank=source[1],
        decode_rank=target[1],
        tensor=tensor.name,
        part=part,
        channels=moved,
        src_offset=_start(tensor, part, source[0]) + moved.first - held.first,
        dst_offset=_start(tensor, part, target[0]) + moved.first - needed.first,
        bytes_per_request=len(moved) * tensor.bytes_per_channel * layers,
    )


def _start(tensor: StateTensor, part: int, tp: int) -> int:
    """Where a part begins in a rank's tensor."""
    return sum(tensor.parts[:part]) // tp
