"""The witness's hook into decode's `CommonKVManager.apply_prefill_status` (SGLang 0.5.23).

Through it go the KV_STATUS messages by which prefill ranks report since 0.5.23; 0.5.20 to 0.5.22 send failures alone
that way, and count the rest where a look at each would cost something.
"""

from collections.abc import Callable
from typing import Any

from sglang.srt.disaggregation.base.conn import KVPoll
from sglang.srt.disaggregation.common.conn import CommonKVManager
from sglang.srt.disaggregation.nixl.conn import NixlKVManager
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from disagg_cli.connector.hooking import say
from disagg_cli.connector.witness import LISTENS, heard, is_probe

STATUS = "sglang.srt.disaggregation.common.conn.CommonKVManager.apply_prefill_status"


def install() -> None:
    """Register the hook where completions come as messages; where they do not, there is nothing to hear."""
    if hasattr(CommonKVManager, "apply_prefill_status") and not hasattr(NixlKVManager, "update_transfer_status"):
        HookRegistry.register(STATUS, listen, HookType.AROUND)
        say(LISTENS)


def listen(original: Callable[..., Any], manager: Any, *args: Any, **kwargs: Any) -> Any:
    """Write down a completion of a probe's request, then count it as ever."""
    room = kwargs.get("bootstrap_room", 0)
    if is_probe(room) and kwargs.get("status") == KVPoll.Success:
        say(heard(room, manager.attn_tp_rank, kwargs["prefill_rank"]))
    return original(manager, *args, **kwargs)
