"""What killed servers of this machine leave in /dev/shm; executors/segments.py says what that is, and why."""

from disagg_cli.executors import sessions
from disagg_cli.executors.segments import mapped, remove

__all__ = ["of_session", "remove"]


def of_session(session: int) -> frozenset[str]:
    """Segments that the processes of a session have mapped now."""
    return mapped(sessions.members(session))
