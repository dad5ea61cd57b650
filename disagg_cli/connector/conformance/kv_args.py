"""What SGLang's prefill.py and decode.py tell the connector about a rank's pools, made of recorded memory."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from disagg_cli.connector.conformance.installed import Installed, Worker
from disagg_cli.connector.conformance.ranks import PAGE, Buffer, Rank, split_layers
from disagg_cli.kv.layout import KVLayout, LayoutKind


def kv_args(installed: Installed, worker: Worker, rank: Rank, stage: int) -> Any:
    """A rank's `KVArgs`. Values that this release does not know do no harm."""
    layout = worker.layout
    args = object.__new__(installed.base.KVArgs)
    values: dict[str, Any] = {
        "engine_rank": rank.side.rank,
        "decode_tp_size": worker.tp,
        "prefill_pp_size": worker.pp,
        "pp_rank": stage,
        "system_dp_rank": 0,
        "gpu_id": 0,
        "ib_device": None,
        "page_size": PAGE,
        "kv_data_ptrs": [buffer.address for buffer in rank.kv],
        "kv_data_lens": [buffer.cells.nbytes for buffer in rank.kv],
        "kv_item_lens": [buffer.item_len for buffer in rank.kv],
        "kv_layer_ids": _layer_ids(layout, rank.kv),
        "kv_data_mem_kinds": ["VRAM"] * len(rank.kv),
        "aux_data_ptrs": [buffer.address for buffer in rank.aux],
        "aux_data_lens": [buffer.cells.nbytes for buffer in rank.aux],
        "aux_item_lens": [buffer.item_len for buffer in rank.aux],
        "kv_head_num": max(1, layout.total_kv_heads // worker.tp),
        "total_kv_head_num": layout.total_kv_heads,
        "prefill_start_layer": _start_layer(installed, layout, rank),
        "prefill_end_layer": rank.side.layers.past_end,
        "mla_compression_ratios": None,
        "swa_kv_cache_layout": "nhd",
        "is_hybrid_mla_backend": worker.latent_hybrid,
        **_state_args(installed, layout, rank),
    }
    for name, value in values.items():
        setattr(args, name, value)
    return args


def state_indices(installed: Installed, layout: KVLayout, rank: Rank) -> Any:
    """Which slots of a request's extra state go along, as this release's callers say it.

    Through 0.5.11 a list, or None where a model has no such state; since 0.5.12 a list for each component.
    """
    slots = list(rank.side.pages[:1] if layout.state else rank.side.pages)
    if installed.lists_components:
        return [slots] if rank.state else []
    return slots if rank.state else None


def page_indices(rank: Rank) -> npt.NDArray[np.int32]:
    """The pages of the request."""
    return np.array(rank.side.pages, dtype=np.int32)


def _start_layer(installed: Installed, layout: KVLayout, rank: Rank) -> int:
    """The first layer of the stage as this release counts it for its pool.

    Sliding-window pools always say 0; hybrid pools count all layers, which releases from 0.5.19 on translate.
    """
    if layout.kind is LayoutKind.SWA:
        return 0
    first = rank.side.layers.first
    translate: Callable[..., int] | None = getattr(installed.prefill, "_transfer_start_layer", None)
    if layout.kind is not LayoutKind.HYBRID or translate is None or installed.prefill is None:
        return first
    pool = object.__new__(installed.prefill.HybridLinearKVPool)
    pool.start_layer = first
    return translate(pool=pool, hf_text_config=SimpleNamespace(full_attention_layer_ids=split_layers(layout)[0]))


def _layer_ids(layout: KVLayout, buffers: list[Buffer]) -> list[int]:
    """Only hybrid pools report which layer each buffer belongs to (`build_kv_layer_ids`)."""
    return [buffer.layer for buffer in buffers] if layout.kind is LayoutKind.HYBRID else []


def _state_args(installed: Installed, layout: KVLayout, rank: Rank) -> dict[str, Any]:
    """The one state component of this layout, or none."""
    addresses = [buffer.address for buffer in rank.state]
    values: dict[str, list[Any]] = {
        "state_data_ptrs": addresses,
        "state_data_lens": [buffer.cells.nbytes for buffer in rank.state],
        "state_item_lens": [buffer.item_len for buffer in rank.state],
        "state_layer_ids": [buffer.layer for buffer in rank.state] if layout.state else [],
        "state_dim_per_tensor": [buffer.cells.shape[1] for buffer in rank.state] if layout.state else [],
        "state_slice_outer_counts": [1] * len(rank.state) if layout.state else [],
        "state_conv_shard_groups": _tensors(layout, rank),
    }
    kind = "mamba" if layout.state else "swa" if layout.window else "nsa"
    if not installed.lists_components:
        return {"state_type": kind if rank.state else "none", **values}
    if not rank.state:
        return {"state_types": [], **{name: [] for name in values}}
    return {"state_types": [_state_type(installed, kind)], **{name: [value] for name, value in values.items()}}


def _state_type(installed: Installed, kind: str) -> Any:
    """This release's word for a kind of state; what was NSA is DSA in later ones."""
    kinds = installed.base.StateType
    return getattr(kinds, kind.upper(), None) or kinds.DSA


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
