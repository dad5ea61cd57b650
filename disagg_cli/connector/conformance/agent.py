"""A NIXL agent that moves bytes between recorded memories, and refuses every descriptor outside registered memory.

It offers what SGLang's NIXL connector calls (0.5.6 to 0.5.23). Its refusals are NIXL's: NOT_FOUND for a descriptor
that no registered region holds, INVALID_PARAM for two lists that do not match. Notices are kept, not delivered: who
counts them may then choose their order.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Descriptors = npt.NDArray[np.uint64]
"""One (address, length, device) a row."""


class NixlRefused(Exception):
    """What NIXL would raise: `code` is its name."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code


class Memory:
    """The registered memory of one rank: arrays at made-up addresses, far apart."""

    _GAP = 1 << 24

    def __init__(self) -> None:
        self._bases: list[int] = []
        self._regions: list[npt.NDArray[np.uint8]] = []
        self._next = self._GAP

    def register(self, cells: npt.NDArray[Any]) -> int:
        """Register a contiguous array; return its address."""
        base = self._next
        self._bases.append(base)
        self._regions.append(cells.reshape(-1).view(np.uint8))
        self._next += (cells.nbytes // self._GAP + 2) * self._GAP
        return base

    def check(self, descriptors: Descriptors) -> None:
        """Refuse where a descriptor is not inside one region."""
        for address, length in np.unique(descriptors[:, :2], axis=0).tolist():
            self.at(int(address), int(length))

    def at(self, address: int, length: int) -> npt.NDArray[np.uint8]:
        """The bytes of one descriptor."""
        index = int(np.searchsorted(self._bases, address, side="right")) - 1
        if index >= 0:
            start = address - self._bases[index]
            if start + length <= self._regions[index].size:
                return self._regions[index][start : start + length]
        raise NixlRefused("NIXL_ERR_NOT_FOUND", f"{length} bytes at {address:#x} are not registered")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A prepared list of descriptors in the memory of one agent, the own one being ""."""

    memory: Memory
    descriptors: Descriptors
    owner: str = ""


@dataclass(frozen=True, slots=True)
class Transfer:
    """A transfer that was made and not yet posted."""

    source: Prepared
    target: Prepared
    notice: bytes = b""


@dataclass(slots=True)
class RecordingAgent:
    """The agent of one rank: its own memory under the name "", its peers under theirs.

    `sent` are the notices that its transfers gave, peer by peer, also where they gave none; `arrived` are those that it
    has yet to read.
    """

    memories: Mapping[str, Memory]
    name: str = ""
    sent: dict[str, list[bytes]] = field(default_factory=dict)
    arrived: list[bytes] = field(default_factory=list)
    calls: Counter[str] = field(default_factory=Counter)

    def create_backend(self, *_options: Any) -> None:
        """Offer one backend."""

    def get_plugin_list(self) -> list[str]:
        """Name the backends that SGLang asks for."""
        return ["UCX"]

    def register_memory(self, regions: Any, *_kind: Any) -> Any:
        """Take what the rank's memory holds already."""
        return regions or True

    def get_agent_metadata(self) -> bytes:
        """What a peer needs to reach this agent: nothing."""
        return b"-"

    def add_remote_agent(self, _metadata: bytes) -> None:
        """Know a peer, which its memory's name does already."""

    def check_xfer_state(self, _transfer: Transfer) -> str:
        """Say that a transfer is over, as each is when `transfer` returns."""
        return "DONE"

    def send_notif(self, peer: str, notice: bytes) -> None:
        """Give a notice that belongs to no transfer."""
        self.sent.setdefault(peer, []).append(notice)

    def get_new_notifs(self) -> dict[str, list[bytes]]:
        """The notices that have arrived since the last call."""
        new, self.arrived = self.arrived, []
        return {"a peer": new} if new else {}

    def get_xfer_descs(self, requests: Any, *_kind: Any) -> Descriptors:
        """Normalize (address, length, device) rows."""
        self.calls["get_xfer_descs"] += 1
        return np.asarray(requests, dtype=np.uint64).reshape(-1, 3)

    def prep_xfer_dlist(self, name: str, descriptors: Any, *_kind: Any) -> Prepared:
        """Prepare a list; rows of five are (address, length, device, stride, count)."""
        self.calls["prep_xfer_dlist"] += 1
        rows = np.asarray(descriptors, dtype=np.uint64)
        rows = _expand(rows) if rows.ndim == 2 and rows.shape[1] == 5 else rows.reshape(-1, 3)
        if not len(rows):
            raise NixlRefused("NIXL_ERR_INVALID_PARAM", "an empty list of descriptors")
        memory = self.memories[name]
        memory.check(rows)
        return Prepared(memory, rows, name)

    def make_prepped_xfer(
        self, _operation: str, source: Prepared, src: Any, target: Prepared, dst: Any, *notice: Any
    ) -> Transfer:
        """Pick rows of two prepared lists."""
        self.calls["make_prepped_xfer"] += 1
        return _pair(_pick(source, src), _pick(target, dst), notice)

    def initialize_xfer(
        self, _operation: str, source: Descriptors, target: Descriptors, peer: str, *notice: Any
    ) -> Transfer:
        """Make a transfer of lists that were not prepared."""
        self.calls["initialize_xfer"] += 1
        local, remote = self.memories[""], self.memories[peer]
        local.check(source)
        remote.check(target)
        return _pair(Prepared(local, source), Prepared(remote, target, peer), notice)

    def transfer(self, transfer: Transfer) -> str:
        """Copy every pair of descriptors."""
        self.calls["transfer"] += 1
        for source, target in zip(transfer.source.descriptors, transfer.target.descriptors, strict=True):
            address, length = int(source[0]), int(source[1])
            transfer.target.memory.at(int(target[0]), int(target[1]))[:] = transfer.source.memory.at(address, length)
        self.sent.setdefault(transfer.target.owner, []).extend([transfer.notice] if transfer.notice else [])
        return "DONE"


def _expand(runs: Descriptors) -> Descriptors:
    """One row per block of each run."""
    parts = [
        np.stack([base + np.arange(count, dtype=np.uint64) * stride, np.full(count, length), np.full(count, device)], 1)
        for base, length, device, stride, count in runs.tolist()
    ]
    return np.concatenate(parts).astype(np.uint64) if parts else np.empty((0, 3), dtype=np.uint64)


def _pick(prepared: Prepared, indices: Sequence[int]) -> Prepared:
    rows = np.asarray(indices, dtype=np.int64)
    if len(rows) and not (rows.min() >= 0 and rows.max() < len(prepared.descriptors)):
        raise NixlRefused("NIXL_ERR_INVALID_PARAM", f"index {rows.max()} of a list of {len(prepared.descriptors)}")
    return Prepared(prepared.memory, prepared.descriptors[rows], prepared.owner)


def _pair(source: Prepared, target: Prepared, notice: Sequence[bytes]) -> Transfer:
    """Refuse lists of different number or lengths."""
    lengths = source.descriptors[:, 1], target.descriptors[:, 1]
    if lengths[0].shape != lengths[1].shape or (lengths[0] != lengths[1]).any():
        raise NixlRefused("NIXL_ERR_INVALID_PARAM", "source and destination descriptors differ in number or length")
    return Transfer(source, target, notice[0] if notice else b"")
