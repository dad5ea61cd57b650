"""The installed SGLang's NIXL connector, imported where no GPU is, and driven without servers or sockets.

Only names that SGLang 0.5.13 to 0.5.23 have in common are used. A release that lacks one is not judged:
`ConnectorChanged` says which name is gone.
"""

import inspect
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

from disagg_cli.connector.conformance.agent import RecordingAgent
from disagg_cli.connector.conformance.ranks import PAGE, Buffer, Rank, split_layers
from disagg_cli.connector.host_memory.mode import ENABLE, IMPORT_TIME_ENV, STAND_INS
from disagg_cli.errors import UsageError
from disagg_cli.kv.layout import KVLayout, LayoutKind


class ConnectorChanged(Exception):
    """The installed connector lacks something that the conformance run calls."""


@dataclass(frozen=True, slots=True)
class Installed:
    """The modules of the installed connector."""

    nixl: ModuleType
    base: ModuleType
    prefill: ModuleType


def import_connector() -> Installed:
    """Import SGLang's NIXL connector; where no GPU is, a stand-in replaces `sgl_kernel`.

    Raises UsageError where SGLang is not installed, or cannot be imported.
    """
    for name, value in IMPORT_TIME_ENV.items():
        if name not in (ENABLE, "PYTHONPATH"):
            os.environ.setdefault(name, value)
    os.environ["SGLANG_PLUGINS"] = ""
    sys.path.insert(0, str(STAND_INS))
    warnings.simplefilter("ignore")  # SGLang and torch warn by the dozen where no GPU is
    try:
        import sglang.srt.disaggregation.base.conn as base
        import sglang.srt.disaggregation.nixl.conn as nixl
        import sglang.srt.disaggregation.prefill as prefill
    except ImportError as error:
        raise UsageError(
            f"cannot import SGLang's NIXL connector: {error}", fix="pip install 'disagg-cli[engine]'"
        ) from error
    finally:
        sys.path.remove(str(STAND_INS))
    return Installed(nixl, base, prefill)


@dataclass(frozen=True, kw_only=True, slots=True)
class Worker:
    """How one side is divided, and the layout that it serves."""

    layout: KVLayout
    tp: int
    pp: int


class PrefillRank:
    """The installed connector's manager of one prefill rank: registers decode peers, then sends them a request."""

    def __init__(self, installed: Installed, worker: Worker, rank: Rank, stage: int) -> None:
        self._installed = installed
        self._worker = worker
        self._rank = rank
        self.agent = RecordingAgent({"": rank.memory})
        layout = worker.layout
        manager = object.__new__(installed.nixl.NixlKVManager)
        latent_hybrid = layout.latent and layout.kind is LayoutKind.HYBRID
        values = {
            "kv_args": _kv_args(installed, worker, rank, stage),
            "agent": self.agent,
            "attn_tp_size": worker.tp,
            "attn_tp_rank": rank.side.rank,
            "state_tp_size": worker.tp,
            "attn_cp_size": 1,
            "attn_cp_rank": 0,
            "dcp_size": 1,
            "pp_size": worker.pp,
            "pp_rank": stage,
            "is_mla_backend": layout.kind is LayoutKind.MLA,
            "is_hybrid_mla_backend": latent_hybrid,
            "src_mem_kind": "VRAM",
            "prep_handles": {},
            "prep_handle_slice_src": None,
            "prep_handles_slice_dst": {},
            "prep_handles_segment_src": {},
            "decode_kv_args_table": {},
            "_num_slots_src": rank.side.slots,
            "_prepared_state_plans": {},
            "_state_layout_rejections": {},
            "_prepared_state_components": frozenset(),
        }
        for name, value in values.items():
            setattr(manager, name, value)
        self._manager = manager

    def register(self, name: str, worker: Worker, peer: Rank) -> None:
        """Prepare transfers to a decode rank, as the bootstrap thread does when it connects."""
        self.agent.memories = {**self.agent.memories, name: peer.memory}
        info = self._installed.nixl.KVArgsRegisterInfo(**_peer(self._installed, name, worker, peer))
        self._manager.decode_kv_args_table[name] = info
        with _changes_named():
            self._manager._prepare_payload_xfer(info)

    def send(self, name: str) -> None:
        """Send the request's KV and state, choosing the path as `transfer_worker` does."""
        manager, info = self._manager, self._manager.decode_kv_args_table[name]
        whole = manager.is_mla_backend or manager.is_hybrid_mla_backend
        peer = self._pages(info)
        if whole or info.decode_tp_size == manager.attn_tp_size:
            arguments = {"dst_kv_ptrs": info.dst_kv_ptrs, "dst_gpu_id": 0, "dst_mem_kind": "VRAM", **peer}
            _call(manager.send_kvcache, {"peer_name": name, **arguments})
        else:
            _call(manager.send_kvcache_slice, {"peer_name": name, **arguments_of_slices(info), **peer})
        if self._rank.state:
            self._send_state(name, info)

    def _pages(self, info: Any) -> dict[str, Any]:
        import numpy as np

        from disagg_cli.connector.conformance.ranks import DECODE_PAGES

        del info
        return {
            "prefill_kv_indices": np.array(self._rank.side.pages, dtype=np.int32),
            "dst_kv_indices": np.array(DECODE_PAGES, dtype=np.int32),
        }

    def _send_state(self, name: str, info: Any) -> None:
        from disagg_cli.connector.conformance.ranks import DECODE_PAGES

        linear = self._worker.layout.state is not None
        mine, theirs = list(self._rank.side.pages), list(DECODE_PAGES)
        sent = _call(
            self._manager.maybe_send_extra,
            {
                "peer_name": name,
                "prefill_state_indices": [mine[:1] if linear else mine],
                "dst_state_data_ptrs": info.dst_state_data_ptrs,
                "dst_state_indices": [theirs[:1] if linear else theirs],
                "dst_gpu_id": 0,
                "decode_tp_size": info.decode_tp_size,
                "decode_tp_rank": info.decode_tp_rank,
                "dst_state_item_lens": info.dst_state_item_lens,
                "dst_state_dim_per_tensor": info.dst_state_dim_per_tensor,
                "dst_state_layer_ids": getattr(info, "dst_state_layer_ids", []),
            },
        )
        if inspect.isgenerator(sent):
            for _ in sent:
                pass


def arguments_of_slices(info: Any) -> dict[str, Any]:
    """What some releases' `send_kvcache_slice` take beside the pages."""
    return {"dst_kv_ptrs": info.dst_kv_ptrs, "dst_gpu_id": 0}


def target_ranks(installed: Installed, layout: KVLayout, decode: Worker, prefill: Worker, rank: int) -> Any:
    """Ask the installed connector which prefill ranks a decode rank contacts, and how many it waits for.

    Returns its record: `target_tp_ranks`, `target_tp_rank` (the one that sends, for MLA), `target_pp_ranks`,
    `required_prefill_response_num`.
    """
    manager = object.__new__(installed.nixl.NixlKVManager)
    values = {
        "kv_args": SimpleNamespace(engine_rank=rank),
        "attn_tp_size": decode.tp,
        "attn_cp_size": 1,
        "attn_cp_rank": 0,
        "pp_size": decode.pp,
        "pp_rank": 0,
        "is_mla_backend": layout.kind is LayoutKind.MLA,
        "is_hybrid_mla_backend": layout.latent and layout.kind is LayoutKind.HYBRID,
        "enable_all_cp_ranks_for_transfer": False,
    }
    for name, value in values.items():
        setattr(manager, name, value)
    info = SimpleNamespace(
        attn_tp_size=prefill.tp,
        attn_cp_size=1,
        pp_size=prefill.pp,
        enable_kv_cache_sharding=False,
        enable_dsa_cache_layer_split=False,
    )
    with _changes_named():
        manager._resolve_rank_mapping(info)
    return info


def _kv_args(installed: Installed, worker: Worker, rank: Rank, stage: int) -> Any:
    """What prefill.py fills in from its pools."""
    layout = worker.layout
    args = object.__new__(installed.base.KVArgs)
    values: dict[str, Any] = {
        "engine_rank": rank.side.rank,
        "pp_rank": stage,
        "gpu_id": 0,
        "page_size": PAGE,
        "kv_data_ptrs": [buffer.address for buffer in rank.kv],
        "kv_data_lens": [buffer.cells.nbytes for buffer in rank.kv],
        "kv_item_lens": [buffer.item_len for buffer in rank.kv],
        "kv_layer_ids": _layer_ids(layout, rank.kv),
        "kv_data_mem_kinds": ["VRAM"] * len(rank.kv),
        "kv_head_num": max(1, layout.total_kv_heads // worker.tp),
        "total_kv_head_num": layout.total_kv_heads,
        "prefill_start_layer": _start_layer(installed, layout, rank),
        "prefill_end_layer": rank.side.layers.past_end,
        "mla_compression_ratios": None,
        "swa_kv_cache_layout": "nhd",
        "is_hybrid_mla_backend": layout.latent and layout.kind is LayoutKind.HYBRID,
        **_state_args(installed, layout, rank),
    }
    for name, value in values.items():
        setattr(args, name, value)
    return args


def _start_layer(installed: Installed, layout: KVLayout, rank: Rank) -> int:
    """The first layer of the stage as this release counts it for its pool.

    Sliding-window pools always say 0; hybrid pools count all layers, which releases from 0.5.19 on translate.
    """
    if layout.kind is LayoutKind.SWA:
        return 0
    first = rank.side.layers.first
    translate: Callable[..., int] | None = getattr(installed.prefill, "_transfer_start_layer", None)
    if layout.kind is not LayoutKind.HYBRID or translate is None:
        return first
    pool = object.__new__(installed.prefill.HybridLinearKVPool)
    pool.start_layer = first
    return translate(pool=pool, hf_text_config=SimpleNamespace(full_attention_layer_ids=split_layers(layout)[0]))


def _layer_ids(layout: KVLayout, buffers: list[Buffer]) -> list[int]:
    """Only hybrid pools report which layer each buffer belongs to (`build_kv_layer_ids`)."""
    return [buffer.layer for buffer in buffers] if layout.kind is LayoutKind.HYBRID else []


def _state_args(installed: Installed, layout: KVLayout, rank: Rank) -> dict[str, Any]:
    """The one state component of this layout, or none."""
    kinds = installed.base.StateType
    if not rank.state:
        empty: list[Any] = []
        names = ("types", "data_ptrs", "data_lens", "item_lens", "layer_ids", "dim_per_tensor")
        more = ("slice_outer_counts", "conv_shard_groups")
        return {f"state_{name}": list(empty) for name in names + more}
    kind = kinds.MAMBA if layout.state else kinds.SWA if layout.window else kinds.DSA
    per_layer = _tensors(layout, rank)
    return {
        "state_types": [kind],
        "state_data_ptrs": [[buffer.address for buffer in rank.state]],
        "state_data_lens": [[buffer.cells.nbytes for buffer in rank.state]],
        "state_item_lens": [[buffer.item_len for buffer in rank.state]],
        "state_layer_ids": [[buffer.layer for buffer in rank.state] if layout.state else []],
        "state_dim_per_tensor": [[buffer.cells.shape[1] for buffer in rank.state] if layout.state else []],
        "state_slice_outer_counts": [[1] * len(rank.state) if layout.state else []],
        "state_conv_shard_groups": [per_layer],
    }


def _tensors(layout: KVLayout, rank: Rank) -> list[list[int] | None]:
    """The parts that the pool declares for each state buffer, tensor by tensor, layer by layer."""
    if not layout.state:
        return []
    layers = len(rank.state) // len(layout.state.tensors)
    return [
        list(tensor.parts) if tensor.declared and len(tensor.parts) > 1 else None
        for tensor in layout.state.tensors
        for _ in range(layers)
    ]


def _peer(installed: Installed, name: str, worker: Worker, peer: Rank) -> dict[str, Any]:
    """What a decode rank registers with, so far as this release's record has a place for it."""
    state = _state_args(installed, worker.layout, peer)
    values: dict[str, Any] = {
        "room": "None",
        "endpoint": "127.0.0.1",
        "dst_port": 1,
        "agent_name": name,
        "agent_metadata": b"",
        "dst_kv_ptrs": [buffer.address for buffer in peer.kv],
        "dst_kv_mem_kinds": ["VRAM"] * len(peer.kv),
        "dst_aux_ptrs": [],
        "dst_state_data_ptrs": state["state_data_ptrs"],
        "gpu_id": 0,
        "decode_tp_size": worker.tp,
        "decode_tp_rank": peer.side.rank,
        "dst_kv_item_len": peer.kv[0].item_len,
        "dst_kv_item_lens": [buffer.item_len for buffer in peer.kv],
        "dst_kv_layer_ids": _layer_ids(worker.layout, peer.kv),
        "dst_num_slots": peer.side.slots,
        "dst_state_item_lens": state["state_item_lens"],
        "dst_state_dim_per_tensor": state["state_dim_per_tensor"],
        "dst_state_layer_ids": state["state_layer_ids"],
        "dst_state_data_lens": state["state_data_lens"],
    }
    return _known(installed.nixl.KVArgsRegisterInfo, values)


def _call(function: Callable[..., Any], values: Mapping[str, Any]) -> Any:
    """Call with those of the values that this release takes; a notice where it still wants one."""
    with _changes_named():
        return function(**_known(function, {"notif": "0_kv_0_1_0", **values}))


def _known(function: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters
    missing = [
        name for name, parameter in parameters.items() if parameter.default is parameter.empty and name not in values
    ]
    if missing:
        raise ConnectorChanged(f"{getattr(function, '__qualname__', function)} wants {', '.join(missing)}")
    return {name: value for name, value in values.items() if name in parameters}


@contextmanager
def _changes_named() -> Iterator[None]:
    """Turn a missing attribute of our stand-in objects into ConnectorChanged."""
    try:
        yield
    except AttributeError as error:
        raise ConnectorChanged(str(error)) from error
