"""What a process of a run, and the run, may be doing, and what may come after it. Pure.

A process:  waiting -> starting -> loading -> healthy -> proven
                          from each of these -> failed, stopped
                                 failed, stopped -> waiting      where the gang starts again

A run:      pending -> starting -> probing -> evaluating -> serving -> stopping -> ended
                 pending: its job waits in a queue
                 starting, probing, serving -> restarting -> starting      where the gang starts again

Steps may be skipped going forward, never taken back. News that comes too late, such as an answer of /health that
arrives after the process has died, asks for a step that is not in these tables, and is not recorded.
"""

from collections.abc import Mapping
from typing import Literal

Phase = Literal["waiting", "starting", "loading", "healthy", "proven", "failed", "stopped"]
RunPhase = Literal["pending", "starting", "probing", "evaluating", "serving", "restarting", "stopping", "ended"]

ALIVE: frozenset[Phase] = frozenset({"starting", "loading", "healthy", "proven"})
"""Phases of a process that exists."""

AFTER: Mapping[Phase, frozenset[Phase]] = {
    "waiting": frozenset({"starting", "failed"}),  # failed: it could not be started
    "starting": frozenset({"loading", "healthy", "proven", "failed", "stopped"}),
    "loading": frozenset({"healthy", "proven", "failed", "stopped"}),
    "healthy": frozenset({"proven", "failed", "stopped"}),
    "proven": frozenset({"failed", "stopped"}),
    "failed": frozenset({"waiting"}),
    "stopped": frozenset({"waiting"}),
}

RUN_AFTER: Mapping[RunPhase, frozenset[RunPhase]] = {
    "pending": frozenset({"starting", "stopping", "ended"}),
    "starting": frozenset({"probing", "evaluating", "serving", "restarting", "stopping", "ended"}),
    "probing": frozenset({"evaluating", "serving", "restarting", "stopping", "ended"}),
    "evaluating": frozenset({"serving", "stopping", "ended"}),
    "serving": frozenset({"restarting", "stopping", "ended"}),
    "restarting": frozenset({"starting", "probing", "stopping", "ended"}),
    "stopping": frozenset({"ended"}),
    "ended": frozenset(),
}


def may_follow(now: Phase, then: Phase) -> bool:
    """Whether a process may go from one phase to another. Staying is no step."""
    return then in AFTER[now]


def run_may_follow(now: RunPhase, then: RunPhase) -> bool:
    """Whether a run may go from one phase to another, or wait for something else within the same one."""
    return then == now != "ended" or then in RUN_AFTER[now]
