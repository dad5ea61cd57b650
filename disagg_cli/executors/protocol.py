"""What everything above asks of a place where processes run. Each kind of place is one module and one registry line."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from disagg_cli.engine.commands import Command
from disagg_cli.errors import LaunchFailed
from disagg_cli.settings import ON_GPU, Timeouts
from disagg_cli.topology.deployment import Host
from disagg_cli.topology.machine import HostFacts

UNKNOWN_EXIT = 255
"""The exit code of a process that has gone while nobody was there to see it go."""


class PlaceLost(LaunchFailed):
    """What processes ran in, or were forked from, has gone, and they with it; none of them failed by itself.

    processes: their names. why: the reason in a few words, for each of them.
    """

    def __init__(self, what: str, *, where: str, fix: str, processes: tuple[str, ...], why: str) -> None:
        super().__init__(what, where=where, fix=fix)
        self.processes = processes
        self.why = why


class HostLost(LaunchFailed):
    """A host that does not answer, by name. It ends by itself what nobody has asked after for some time (lease_s)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Handle:
    """A started process. All of it is plain data, and enough for a fresh executor to find the process again.

    host: a Host's name. pid: there, the leader of a session of its own; 0 where only the token tells. born: when it
    started, in seconds since that host's boot, which tells a reused pid. log: here. token: what only its executor
    understands, such as a folder there or the name of a step.
    """

    name: str
    host: str
    pid: int
    born: float
    log: Path
    token: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """What an executor is made of. settings: what the topology says below the executor's name.

    run: the name of the run, empty where there is none yet and none will be started. logs: the run's log folder.
    tell: records, in words, what happens between the executor and its hosts. home: what disagg keeps between runs.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    run: str = ""
    logs: Path = Path()
    warm: bool = False
    timeouts: Timeouts = ON_GPU
    tell: Callable[[str], None] = lambda _: None
    home: Path | None = None


class Executor(Protocol):
    """A place that starts processes and ends them. Calls come in this order, and more than one may be under way.

    1. `open` comes first, `close` last; `close` does not end what was started.
    2. `place` says which machines stand behind the hosts of the deployment; `look` what is known of them.
    3. `start` returns once the process exists; where it is cancelled there is none. The process's output reaches `log`,
       a file of this machine: while it runs, and all of it before `poll` returns an exit code or `collect` returns,
       unless a full disk here keeps it from that.
    4. `poll` is cheap, and never forgets an exit code that it has seen.
    5. `terminate` asks the leader to end; `kill` ends every process of the session, also after the leader has gone.
    6. Everything that takes a Handle works in an executor that did not start the process: from the Handle alone.
    """

    async def open(self) -> None:
        """Get ready. LaunchFailed says why not."""

    async def place(self, hosts: Sequence[Host]) -> Mapping[str, Host]:
        """The machine, with its true name and address, behind each host, by the name in the deployment.

        Hosts left out stay as they are. For a run it may take as long as a queue; without one (`Site.run` is empty)
        nothing is taken into use. LaunchFailed if there is no room.
        """

    async def look(
        self, hosts: Sequence[Host], ports: Mapping[Host, Mapping[int, str]], paths: Sequence[str]
    ) -> tuple[HostFacts, ...]:
        """Facts of these hosts, all looked at side by side: also of those that cannot be reached, with the reason.

        Empty where nothing can be known before `place`. ports: what will listen at which address of a host. paths:
        what must be there.
        """

    async def provide(self, hosts: Sequence[Host], folder: Path) -> None:
        """See that a folder of this machine is on these hosts too, under the same path. LaunchFailed if it cannot."""

    async def start(self, command: Command, log: Path) -> Handle:
        """Start a process on its command's host. LaunchFailed says why it could not be started."""

    async def poll(self, handle: Handle) -> int | None:
        """Exit code, -N for signal N, None while it runs. LaunchFailed if its host is lost, by name; PlaceLost names
        all processes that are lost with it."""

    async def terminate(self, handle: Handle) -> None:
        """Ask the process to end."""

    async def kill(self, handle: Handle) -> None:
        """End every process of the session."""

    async def survivors(self, handle: Handle) -> tuple[int, ...]:
        """Pids of the session that still run."""

    async def collect(self, handle: Handle) -> None:
        """Fetch what is left of the log of a process that has ended, and forget the process."""

    async def close(self) -> None:
        """Let go of what the executor itself holds."""


@runtime_checkable
class Remembers(Protocol):
    """An executor whose hosts know what was started there, also what a disagg that was killed had no time to note."""

    async def started(self, process: str, host: str) -> tuple[Handle, ...]:
        """What a host, by name, has been given to run for a process of this run. LaunchFailed if it cannot be asked."""
