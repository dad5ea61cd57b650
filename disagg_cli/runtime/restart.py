"""When a gang whose worker has died is started again, and when no more. Pure.

Prefill and decode workers are one gang: each decode keeps the agent metadata, descriptors and connections of each
prefill, and a worker that comes back under the same address cannot rejoin while its peers live (nixl #795,
sglang #40108, llm-d #2187: seen as a segmentation fault, a hang, or answers without content while all are healthy).
So all of them end and start together: new bootstrap servers with empty tables, new rooms, and a new proof.
"""

from collections.abc import Sequence

from disagg_cli.topology.spec import RestartSpec

LONGEST_PAUSE_S = 300.0


def pause(spec: RestartSpec, earlier: Sequence[float], now: float) -> float | None:
    """Seconds to wait before another start, or None for no more starts.

    earlier: when the gang was started again before; a start that is `within_s` seconds old no longer counts.
    """
    recent = sum(now - at < spec.within_s for at in earlier)
    if spec.policy == "never" or recent >= spec.times:
        return None
    return min(LONGEST_PAUSE_S, spec.backoff_s * 2.0 ** min(recent, 16))
