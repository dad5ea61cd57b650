"""The faults that `disagg drill` plants, each one that a release has had or could have. Pure."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from disagg_cli.errors import UsageError
from disagg_cli.kv.layout import LayoutKind
from disagg_cli.kv.plan import SlicePlan

ENABLE = "DISAGG_FAULT"
"""Environment variable that plants a fault in the workers that have it."""

DELAY_S = 15.0
SHOWS = Literal["hang", "wrong", "late"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """One fault. shows: how a probe that works sees it: no answer, wrong KV, or KV that comes late."""

    name: str
    what: str
    shows: SHOWS


FAULTS = (
    Fault(name="swap-heads", what="two prefill ranks write each other's heads", shows="wrong"),
    Fault(name="shift-rank", what="one prefill rank writes one head too far", shows="wrong"),
    Fault(name="drop-page", what="the last page of each chunk is not sent", shows="wrong"),
    Fault(name="same-key", what="all prefill ranks sign their completions alike (sglang #22145)", shows="hang"),
    Fault(name="lose-completion", what="one prefill rank never says that it has finished", shows="hang"),
    Fault(name="delay-completion", what=f"one prefill rank says so {DELAY_S:.0f} s late", shows="late"),
)


def named(names: Iterable[str]) -> tuple[Fault, ...]:
    """The faults with these names, in their own order. UsageError for a name that is none."""
    asked = set(names)
    if unknown := asked - {fault.name for fault in FAULTS}:
        raise UsageError(
            f"unknown fault: {', '.join(sorted(unknown))}", fix=f"one of: {', '.join(fault.name for fault in FAULTS)}"
        )
    return tuple(fault for fault in FAULTS if fault.name in asked)


VICTIM = 1
"""The prefill rank that loses or delays its completion."""


def idle(fault: Fault, plan: SlicePlan) -> str | None:
    """Why a fault has nothing to act on between two workers; None where it has."""
    heads = {route.prefill_rank: route.heads for route in plan.routes}
    sliced = plan.prefill.attention_tp != plan.decode.attention_tp and plan.layout.kind is not LayoutKind.MLA
    match fault.name:
        case "swap-heads" | "shift-rank" | "drop-page" if not sliced:
            return "no heads are cut: attention TP is equal, or the cache is a latent"
        case "swap-heads" if heads.get(0) == heads.get(VICTIM) or VICTIM not in heads:
            return "prefill ranks 0 and 1 do not send different heads"
        case "same-key" if max(Counter(route.decode_rank for route in plan.routes).values()) < 2:
            return "each decode rank has one sender"
        case "lose-completion" | "delay-completion" if VICTIM not in heads:
            return f"prefill rank {VICTIM} sends nothing"
    return None
