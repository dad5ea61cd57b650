"""Every time-out in one place. Seconds. No wait in disagg is without one."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeouts:
    """How long a launch waits for what."""

    health: float = 1800.0
    """For all workers to become healthy. Weights of hundreds of GB take their time; a CPU server needs under 180."""

    health_request: float = 2.0
    """For one answer of /health."""

    router: float = 120.0
    """For the router to answer a real request once every pair is proven."""

    grace: float = 5.0
    """Between the request to end and SIGKILL."""

    gone: float = 30.0
    """Between SIGKILL and giving up on a process that does not go: on starved cores the kernel needs seconds to give
    the memory of a big one back, and nobody can do anything about it but wait."""

    unanswered: float = 4.0
    """The same, where nobody knows whether it goes: its host does not answer."""

    hurried: float = 2.0
    """The same, and for each answer, once somebody is in a hurry."""

    poll: float = 0.1
    """Between two looks at processes and health."""

    connect: float = 10.0
    """For ssh to get to a host and through its handshake."""

    ask: float = 30.0
    """For one answer of a host, such as what is installed there. A first import from a network disk takes its time."""

    silent: float = 3.0
    """Without a word from a host whose workers are followed, before the connection counts as lost."""

    reattach: float = 15.0
    """For getting a lost connection back. Its workers go on meanwhile; after it the run is given up."""

    lease: float = 600.0
    """A host ends a worker that no disagg has asked after for so long: one whose host was lost, and never stopped."""


ON_GPU = Timeouts()
ON_CPU = Timeouts(health=300.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class WarmTimeouts:
    """How long to wait for a warm parent (connector/host_memory/warm_parent.py)."""

    ready: float = 180.0
    """For one import of SGLang: 10 s on two idle cores."""

    answer: float = 20.0
    """For an answer: milliseconds, on cores that are not starved."""

    gone: float = 3.0
    """For it to end once it was asked to, before SIGKILL."""

    ttl: float = 3600.0
    """For which a kept parent stays after it was last used."""


WARM = WarmTimeouts()
