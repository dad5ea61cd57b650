"""A NIXL agent that moves bytes between recorded memories, and refuses every descriptor outside registered memory.

It offers what SGLang's NIXL connector calls (0.5.13 to 0.5.23). Its refusals are NIXL's: NOT_FOUND for a descriptor
that no registered region holds, INVALID_PARAM for two lists that do not match.
"""

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
    """A prepared list of descriptors in one memory."""

    memory: Memory
    descriptors: Descriptors


@dataclass(frozen=True, slots=True)
class Transfer:
    """A transfer that was made and not yet posted."""

    source: Prepared
    target: Prepared


@dataclass(slots=True)
class RecordingAgent:
    """The agent of one prefill rank: its own memory under the name "", its decode peers under theirs."""

    memories: Mapping[str, Memory]
    writes: int = 0
    bytes_written: int = 0
    descriptors_prepared: int = field(default=0)

    def get_xfer_descs(self, requests: Any, *_kind: Any) -> Descriptors:
        """Normalize (address, length, device) rows."""
        return np.asarray(requests, dtype=np.uint64).reshape(-1, 3)

    def prep_xfer_dlist(self, name: str, descriptors: Any, *_kind: Any) -> Prepared:
        """Prepare a list; rows of five are (address, length, device, stride, count)."""
        rows = np.asarray(descriptors, dtype=np.uint64)
        rows = _expand(rows) if rows.ndim == 2 and rows.shape[1] == 5 else rows.reshape(-1, 3)
        if not len(rows):
            raise NixlRefused("NIXL_ERR_INVALID_PARAM", "an empty list of descriptors")
        memory = self.memories[name]
        memory.check(rows)
        self.descriptors_prepared += len(rows)
        return Prepared(memory, rows)

    def make_prepped_xfer(
        self, _operation: str, source: Prepared, src: Any, target: Prepared, dst: Any, *_notice: Any
    ) -> Transfer:
        """Pick rows of two prepared lists."""
        return _pair(_pick(source, src), _pick(target, dst))

    def initialize_xfer(
        self, _operation: str, source: Descriptors, target: Descriptors, peer: str, *_notice: Any
    ) -> Transfer:
        """Make a transfer of lists that were not prepared."""
        local, remote = self.memories[""], self.memories[peer]
        local.check(source)
        remote.check(target)
        return _pair(Prepared(local, source), Prepared(remote, target))

    def transfer(self, transfer: Transfer) -> str:
        """Copy every pair of descriptors."""
        for source, target in zip(transfer.source.descriptors, transfer.target.descriptors, strict=True):
            address, length = int(source[0]), int(source[1])
            transfer.target.memory.at(int(target[0]), int(target[1]))[:] = transfer.source.memory.at(address, length)
            self.bytes_written += length
        self.writes += len(transfer.source.descriptors)
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
    return Prepared(prepared.memory, prepared.descriptors[rows])


def _pair(source: Prepared, target: Prepared) -> Transfer:
    """Refuse lists of different number or lengths."""
    lengths = source.descriptors[:, 1], target.descriptors[:, 1]
    if lengths[0].shape != lengths[1].shape or (lengths[0] != lengths[1]).any():
        raise NixlRefused("NIXL_ERR_INVALID_PARAM", "source and destination descriptors differ in number or length")
    return Transfer(source, target)
