"""What a rehearsal needs of the machine, and the one rule by which it is made smaller. Pure.

The rule: decode workers are left out, one after the other from the pool that has most of them, and each pool keeps one.
Nothing else shrinks: another P, D or T would be another plan.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from disagg_cli.errors import PlanRefused
from disagg_cli.rehearsal.derive import Derived
from disagg_cli.topology.spec import RoleSpec

PARENT_GIB = 0.6
PROCESS_GIB = {"warm": 0.16, "cold": 0.70}
"""Memory of one process (PSS): forked from a warm parent, or started cold.

Measured with SGLang 0.5.23, 1P4D of TP4 and 4 x TP1 with an aggregated server: 4.08 GiB warm, 17.6 GiB cold, the
latter with rows for 2048 requests, 270 MB a rank, which are done without now.
"""
PROCESS_S = {"warm": 1.2, "cold": 10.0}
"""Core seconds of one process until its server is healthy, measured likewise."""
RANKS_PER_CORE = 8
"""Ranks share cores in turn. Nine on two cores are healthy within 10 s, warm; more than four on a core is a guess."""
BESIDE = 1 + 3
"""Processes beside the workers': the router, and at the end an aggregated server of one rank."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Room:
    """What this machine has for a rehearsal. memory_gib: what is free now. has_parent: a warm parent is up already."""

    cores: int
    memory_gib: float
    has_parent: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Needs:
    """What a rehearsal takes. start_s: until all servers are healthy, roughly."""

    ranks: int
    processes: int
    memory_gib: float
    start_s: float
    warm: bool

    def fits(self, room: Room) -> bool:
        """Whether the machine has room for it."""
        return self.ranks <= RANKS_PER_CORE * room.cores and self.memory_gib <= room.memory_gib

    def sentence(self, room: Room) -> str:
        """Both sides of the comparison in words."""
        return (
            f"{self.ranks} ranks in {self.processes} processes need {self.memory_gib:.1f} GiB and {self.ranks} of "
            f"{RANKS_PER_CORE * room.cores} places ({room.cores} cores, {RANKS_PER_CORE} ranks each); "
            f"{room.memory_gib:.1f} GiB are free"
        )

    def document(self) -> dict[str, Any]:
        """The needs as JSON."""
        return asdict(self)


def needs(document: Mapping[str, Any], room: Room, *, warm: bool) -> Needs:
    """Count what servers need. Each has its ranks, a tokenizer, a detokenizer, and with DP a controller."""
    pools = [RoleSpec(**{**pool, "args": {}, "env": {}}) for role in ("prefill", "decode") for pool in document[role]]
    ranks = sum(pool.workers * pool.ranks for pool in pools)
    processes = ranks + sum(pool.workers * (2 + (pool.dp > 1)) for pool in pools) + BESIDE
    how = "warm" if warm else "cold"
    return Needs(
        ranks=ranks,
        processes=processes,
        memory_gib=round(PROCESS_GIB[how] * processes + (PARENT_GIB if warm and not room.has_parent else 0), 1),
        start_s=round(PROCESS_S[how] * processes / room.cores, 0),
        warm=warm,
    )


def fit(derived: Derived, room: Room, *, warm: bool) -> tuple[Derived, Needs]:
    """Return what there is room for, and what that needs. PlanRefused, with the numbers, where there is too little."""
    workers = [pool["workers"] for pool in derived.document["decode"]]
    wanted = least = needs(derived.document, room, warm=warm)
    fitting = derived
    while not least.fits(room):
        most = max(workers)
        if most == 1:
            raise PlanRefused(
                f"this machine has no room for a rehearsal: {least.sentence(room)}",
                fix="rehearse on a machine with more cores or memory; a rehearsal never changes P, D or T",
            )
        workers[workers.index(most)] -= 1
        fitting = derived.fewer_decodes(workers, wanted.sentence(room))
        least = needs(fitting.document, room, warm=warm)
    return fitting, least
