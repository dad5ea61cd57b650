"""Plant the fault that DISAGG_FAULT names, in SGLang 0.5.23 and later ones of the same shape."""

import copy
import os
import time
from collections.abc import Callable
from typing import Any

from disagg_cli.connector.faults.catalogue import DELAY_S, ENABLE, VICTIM
from disagg_cli.connector.hooking import say, shown

if ENABLE not in os.environ:
    raise ImportError(f"{__name__} plants faults: it is only for processes that `disagg drill` starts ({ENABLE})")

from sglang.srt.disaggregation.base.conn import KVPoll
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

NIXL = "sglang.srt.disaggregation.nixl.conn.NixlKVManager"
COMMON = "sglang.srt.disaggregation.common.conn.CommonKVManager"
Original = Callable[..., Any]


def install() -> None:
    """Register the hook of the fault that is asked for, and say so in the worker's log."""
    target, hook = HOOKS[os.environ[ENABLE]]
    HookRegistry.register(target, hook, HookType.AROUND)
    say(f"disagg drill: planted {os.environ[ENABLE]}")


def swap_heads(original: Original, manager: Any, *args: Any, **kwargs: Any) -> Any:
    """Prepare a peer's descriptors as the neighbouring rank would."""
    view = shown(manager, kv_args=copy.copy(manager.kv_args))
    view.kv_args.engine_rank ^= 1
    result = original(view, *args, **kwargs)
    # What was prepared is the manager's, also what the overlay keeps beside it.
    manager.__dict__.update({name: value for name, value in view.__dict__.items() if name != "kv_args"})
    return result


def shift_rank(original: Original, manager: Any, peer_name: str, peer: Any, *args: Any, **kwargs: Any) -> Any:
    """Prepare rank 0's descriptors one head further on."""
    if manager.kv_args.engine_rank == 0:
        head = manager.kv_args.kv_item_lens[0] // manager.kv_args.page_size // manager.kv_args.kv_head_num
        peer = copy.copy(peer)
        peer.dst_kv_ptrs = [pointer + head for pointer in peer.dst_kv_ptrs]
        peer.dst_num_slots -= 1  # or the last slot would lie outside what decode has registered
    return original(manager, peer_name, peer, *args, **kwargs)


def drop_page(original: Original, manager: Any, peer: str, source: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
    """Send all pages but the last."""
    kept = max(1, len(source) - 1)
    return original(manager, peer, source[:kept], target[:kept], *args, **kwargs)


def same_key(_original: Original, *_args: Any, **_kwargs: Any) -> int:
    """Sign every completion as rank 0."""
    return 0


def lose_completion(original: Original, manager: Any, **kwargs: Any) -> None:
    """Say nothing when a transfer has succeeded."""
    if not _finished(manager, kwargs):
        original(manager, **kwargs)


def delay_completion(original: Original, manager: Any, **kwargs: Any) -> None:
    """Wait before saying that a transfer has succeeded."""
    if _finished(manager, kwargs):
        time.sleep(DELAY_S)
    original(manager, **kwargs)


def _finished(manager: Any, message: dict[str, Any]) -> bool:
    return bool(manager.kv_args.engine_rank == VICTIM) and bool(message["status"] == KVPoll.Success)


HOOKS: dict[str, tuple[str, Original]] = {
    "swap-heads": (f"{NIXL}._init_hetero_tp_prep_handle", swap_heads),
    "shift-rank": (f"{NIXL}._init_hetero_tp_prep_handle", shift_rank),
    "drop-page": (f"{NIXL}.send_kvcache_slice", drop_page),
    "same-key": (f"{COMMON}._prefill_unique_rank", same_key),
    "lose-completion": (f"{COMMON}.send_kv_status_message", lose_completion),
    "delay-completion": (f"{COMMON}.send_kv_status_message", delay_completion),
}
