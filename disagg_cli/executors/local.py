"""This machine: each process cold, by its ordinary command line, in a session of its own."""

import os
import signal
import subprocess
from collections.abc import Iterable
from pathlib import Path

from disagg_cli.engine.commands import Command
from disagg_cli.errors import LaunchFailed
from disagg_cli.executors import sessions
from disagg_cli.executors.protocol import Handle


class LocalExecutor:
    """Starts processes of this machine and owns them."""

    def __init__(self) -> None:
        self._children: dict[int, subprocess.Popen[bytes]] = {}

    async def start(self, command: Command, log: Path) -> Handle:
        """Start a process. LaunchFailed says why it could not be started."""
        try:
            with log.open("ab") as output:
                child = subprocess.Popen(  # noqa: ASYNC220 - fork and exec take a millisecond, the child runs on its own
                    command.argv,
                    env=environment(command),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            raise LaunchFailed(f"{command.name} could not be started: {error}", where=command.argv[0]) from None
        self._children[child.pid] = child
        return handle(command, child.pid, log)

    async def poll(self, handle: Handle) -> int | None:
        """Exit code, -N for signal N, None while it runs."""
        return self._children[handle.pid].poll()

    async def terminate(self, handle: Handle) -> None:
        """Ask the process to end."""
        if self._children[handle.pid].poll() is None:
            sessions.send(handle.pid, signal.SIGTERM)

    async def kill(self, handle: Handle) -> None:
        """End every process of the session."""
        sessions.kill_session(handle.pid)

    async def survivors(self, handle: Handle) -> tuple[int, ...]:
        """Pids of the session that still run."""
        self._children[handle.pid].poll()
        return sessions.members(handle.pid)

    async def taken_ports(self, address: str, ports: Iterable[int]) -> tuple[int, ...]:
        """Which of these ports cannot be bound at this address."""
        return sessions.taken(address, ports)

    async def close(self) -> None:
        """Nothing is held beside the processes."""


def environment(command: Command) -> dict[str, str]:
    """The environment of a local process: this one's, with the command's settings on top."""
    env = dict(os.environ)
    inherited = env.get("PYTHONPATH")
    env.update(command.env)
    if "PYTHONPATH" in command.env and inherited:
        env["PYTHONPATH"] = f"{command.env['PYTHONPATH']}{os.pathsep}{inherited}"
    return env


def handle(command: Command, pid: int, log: Path) -> Handle:
    """Describe a process of this machine that has just been started."""
    return Handle(name=command.name, host=command.host.name, pid=pid, born=sessions.born(pid), log=log)
