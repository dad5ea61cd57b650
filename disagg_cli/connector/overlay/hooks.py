"""The overlay's hooks into `NixlKVManager` of SGLang 0.5.11 to 0.5.23, and later ones of the same shape.

Since 0.5.13 descriptor lists are prepared once for each peer, and the source's list once for all (sglang
`disaggregation/nixl/conn.py`). The overlay keeps it so, but has one source list for each way of cutting a token:
decode pools of different TP sizes behind one prefill then no longer share a list that fits only the first of them.
Before 0.5.13 slices are computed for each request, from arguments.

Two releases also count wrongly. 0.5.11 signs KV with the pipeline stage alone, so that decode cannot tell TP ranks
apart; 0.5.12 sends the metadata, and the word that it waits for, only where a model has extra state (sglang #25698).
"""

import copy
import inspect
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from sglang.srt.disaggregation.nixl.conn import NixlKVManager
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from disagg_cli.connector.hooking import say, shown
from disagg_cli.connector.overlay import LOADED, REFUSED
from disagg_cli.connector.overlay.view import View, without_replicas

MANAGER = "sglang.srt.disaggregation.nixl.conn.NixlKVManager"

PREPARE = ("self", "peer_name", "decode_kv_args")
SEND_PREPARED = ("self", "peer_name", "prefill_kv_indices", "dst_kv_indices")
SEND_COMPUTED = (
    *("self", "peer_name", "prefill_kv_indices", "dst_kv_ptrs", "dst_kv_indices", "dst_gpu_id", "notif"),
    *("prefill_tp_size", "decode_tp_size", "decode_tp_rank", "dst_kv_item_len"),
)


def install() -> bool:
    """Register the hooks that fit this SGLang, all of them or none; say which in the worker's log, and return it."""
    send = _parameters("send_kvcache_slice")
    if send == SEND_COMPUTED:
        _hook("send_kvcache_slice", send_computed)
        say(f"{LOADED}: replicated KV heads are sliced right for each request{_mend_counting()}")
    elif send[:4] == SEND_PREPARED and _parameters("_init_hetero_tp_prep_handle")[:3] == PREPARE:
        _hook("_init_hetero_tp_prep_handle", prepare)
        _hook("send_kvcache_slice", send_prepared)
        say(f"{LOADED}: replicated KV heads are sliced right, and each decode TP has its own source descriptors")
    else:
        say(f"{REFUSED}: this SGLang's NixlKVManager has another shape than the overlay knows (send: {send})")
        return False
    return True


def _mend_counting() -> str:
    """Register what lets decode count its senders, in the two releases that need it; say what, for the log."""
    if not hasattr(NixlKVManager, "transfer_worker"):
        _hook("add_transfer_request", sign_by_rank)
        return ", and each prefill rank signs with its own number"
    if version("sglang") == "0.5.12":
        _hook("add_transfer_request", name_no_state)
        _hook("maybe_send_extra", say_no_state)
        return ", and requests without extra state finish"
    return ""


def prepare(original: Callable[..., Any], manager: Any, peer_name: str, peer: Any, *args: Any, **kwargs: Any) -> Any:
    """Prepare a peer's descriptors with its ranks shown as `without_replicas`."""
    seen = without_replicas(manager.attn_tp_size, peer.decode_tp_size, peer.decode_tp_rank, _kv_heads(manager))
    sources, groups = manager.__dict__.setdefault("disagg_sources", {}), seen.groups(manager.attn_tp_size)
    view = shown(manager, prep_handle_slice_src=sources.get(groups), kv_args=copy.copy(manager.kv_args))
    view.kv_args.total_kv_head_num = seen.kv_heads
    result = original(view, peer_name, _peer(peer, seen), *args, **kwargs)
    sources[groups] = view.prep_handle_slice_src
    manager.__dict__.setdefault("disagg_source_of", {})[peer_name] = view.prep_handle_slice_src
    manager.prep_handle_slice_src = manager.prep_handle_slice_src or view.prep_handle_slice_src
    return result


def send_prepared(original: Callable[..., Any], manager: Any, peer_name: str, *args: Any, **kwargs: Any) -> Any:
    """Send with the source descriptors that were cut for this peer."""
    source = manager.disagg_source_of[peer_name]
    if source is not manager.prep_handle_slice_src:
        manager = shown(manager, prep_handle_slice_src=source)
    return original(manager, peer_name, *args, **kwargs)


def send_computed(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Send with the decode rank shown as `without_replicas`."""
    call = inspect.signature(original).bind(*args, **kwargs).arguments
    seen = without_replicas(
        call["prefill_tp_size"], call["decode_tp_size"], call["decode_tp_rank"], _kv_heads(call["self"])
    )
    return original(**call | {"decode_tp_size": seen.decode_tp, "decode_tp_rank": seen.decode_rank})


def sign_by_rank(original: Callable[..., Any], manager: Any, *args: Any, **kwargs: Any) -> Any:
    """Send a request's chunk as a rank that no other one has: later releases' `transfer_source_rank`.

    Where slices are computed, only the rank within attention TP counts, and that stays what it is.
    """
    view = shown(manager, kv_args=copy.copy(manager.kv_args))
    number = manager.kv_args.pp_rank * manager.server_args.tp_size + manager.kv_args.engine_rank
    view.kv_args.pp_rank = view.kv_args.engine_rank = number
    return original(view, *args, **kwargs)


def name_no_state(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Hand on "no extra state" as a list that is not empty: its metadata is then sent like any other request's."""
    call = inspect.signature(original).bind(*args, **kwargs).arguments
    return original(**call | {"state_indices": call.get("state_indices") or [None]})


def say_no_state(
    original: Callable[..., Any], manager: Any, peer_name: str, indices: Any, *args: Any, **kwargs: Any
) -> Any:
    """Tell decode that there is no extra state to come, which it waits for all the same."""
    if manager.kv_args.state_types:
        return original(manager, peer_name, indices, *args, **kwargs)
    call = inspect.signature(original).bind(manager, peer_name, indices, *args, **kwargs).arguments
    manager.agent.send_notif(peer_name, call["notif"].encode("ascii"))
    return []


def _kv_heads(manager: Any) -> int:
    """The model's KV heads, or what stock falls back to where it does not know them."""
    args = manager.kv_args
    return int(getattr(args, "total_kv_head_num", 0) or args.kv_head_num * manager.attn_tp_size)


def _peer(peer: Any, seen: View) -> Any:
    view = copy.copy(peer)
    view.decode_tp_size, view.decode_tp_rank = seen.decode_tp, seen.decode_rank
    return view


def _parameters(method: str) -> tuple[str, ...]:
    found = getattr(NixlKVManager, method, None)
    return tuple(inspect.signature(found).parameters) if found else ()


def _hook(method: str, hook: Callable[..., Any]) -> None:
    HookRegistry.register(f"{MANAGER}.{method}", hook, HookType.AROUND)
