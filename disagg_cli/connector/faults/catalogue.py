"""The faults that `disagg drill` plants, each one that a release has had or could have. Pure."""

from dataclasses import dataclass
from typing import Literal

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
