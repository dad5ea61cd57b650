"""What the supervisor asks of a place where processes run."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from disagg_cli.engine.commands import Command


@dataclass(frozen=True, kw_only=True, slots=True)
class Handle:
    """A started process, leader of a session of its own. born: its start time, which tells a reused pid."""

    name: str
    host: str
    pid: int
    born: float
    log: Path


class Executor(Protocol):
    """A place that starts processes and ends them.

    1. `start` returns once the process exists; it has a session of its own and writes to `log`.
    2. `poll` is cheap, and never forgets an exit code that it has seen.
    3. `terminate` asks the leader to end; `kill` ends every process of the session, also after the leader has gone.
    4. `close` ends whatever the executor itself needed. It does not end what was started.
    """

    async def start(self, command: Command, log: Path) -> Handle:
        """Start a process. LaunchFailed says why it could not be started."""

    async def poll(self, handle: Handle) -> int | None:
        """Exit code, -N for signal N, None while it runs."""

    async def terminate(self, handle: Handle) -> None:
        """Ask the process to end."""

    async def kill(self, handle: Handle) -> None:
        """End every process of the session."""

    async def survivors(self, handle: Handle) -> tuple[int, ...]:
        """Pids of the session that still run."""

    async def taken_ports(self, address: str, ports: Iterable[int]) -> tuple[int, ...]:
        """Which of these ports cannot be bound at this address."""

    async def close(self) -> None:
        """Let go of what the executor itself holds."""
