"""Time that does not jump: how long something has taken, also as another process of this machine sees it.

The time of day is for people: it is set by hand, by NTP, and when a virtual machine wakes up. CLOCK_MONOTONIC counts
from the boot and is the same for all processes (clock_gettime(2)), so a state file may carry it; the boot id tells
whether a reader shares it.
"""

import time

from disagg_cli.executors.sessions import boot


def age(since: float, clock: float, booted: str) -> float:
    """Seconds since a moment on record. since: the time of day; clock: CLOCK_MONOTONIC in the boot `booted`.

    Another boot, or another machine that sees the same folder, has only the time of day to go by.
    """
    return max(0.0, time.monotonic() - clock if booted and booted == boot() else time.time() - since)
