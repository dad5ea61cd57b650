"""Move bytes through the installed connector, stock or with the overlay, and print what came of it and what it cost.

python overlay_bytes.py stock|overlay
"""

import json
import sys
from collections import Counter

from disagg_cli.connector.conformance import agent
from disagg_cli.connector.conformance.exchange import observe
from disagg_cli.connector.conformance.installed import import_connector
from disagg_cli.connector.conformance.verify import _layout
from disagg_cli.kv.parallelism import Parallelism

PLANS = {
    **{f"{p}:{d}:{t}": (p, [d], t) for p in (1, 2, 4, 8) for d in (1, 2, 4, 8, 16) for t in (1, 2, 4, 8)},
    "pools 2:1+4:4": (2, [1, 4], 4),
    "pools 2:4+8:4": (2, [4, 8], 4),
    "pools 4:4+8:2": (4, [4, 8], 2),
    "pools 1:2+4+8:2": (1, [2, 4, 8], 2),
}
CALLS = ("prep_xfer_dlist", "make_prepped_xfer", "transfer", "get_xfer_descs", "initialize_xfer")


def counted(name):
    original = getattr(agent.RecordingAgent, name)

    def wrapper(*args, **kwargs):
        calls[name] += 1
        return original(*args, **kwargs)

    return wrapper


installed = import_connector()
if sys.argv[1] == "overlay":
    from sglang.srt.plugins.hook_registry import HookRegistry

    from disagg_cli.connector.overlay import hooks

    hooks.install()
    HookRegistry.apply_hooks()
calls: Counter[str] = Counter()
for method in CALLS:
    setattr(agent.RecordingAgent, method, counted(method))
found = {}
for name, (prefill, decode, kv_heads) in PLANS.items():
    calls.clear()
    seen = observe(installed, _layout(kv_heads), Parallelism(tp=prefill), [Parallelism(tp=tp) for tp in decode])
    found[name] = {"outcome": seen.outcome.value, "detail": seen.detail, "calls": dict(calls)}
json.dump(found, sys.stdout)
