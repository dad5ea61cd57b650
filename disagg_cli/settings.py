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

    gone: float = 4.0
    """Between SIGKILL and giving up on a process that does not go."""

    poll: float = 0.1
    """Between two looks at processes and health."""


ON_GPU = Timeouts()
ON_CPU = Timeouts(health=300.0)
