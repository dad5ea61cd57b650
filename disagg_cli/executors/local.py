"""This machine: each process cold, by its ordinary command line, in a session of its own."""

import asyncio
import os
import secrets
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from disagg_cli.connector.plugin import MODES
from disagg_cli.engine.commands import Command
from disagg_cli.errors import LaunchFailed
from disagg_cli.executors import sessions
from disagg_cli.executors.protocol import UNKNOWN_EXIT, Executor, Handle, Site
from disagg_cli.topology import survey
from disagg_cli.topology.deployment import Host
from disagg_cli.topology.machine import HostFacts, gather, host_facts

MARK = "DISAGG_STARTED_AS"
"""Environment variable of what is started here: its log and its token, which outlive a disagg that could note neither.
Children inherit it, but a token that is on record says whose they are."""


def executor(site: Site) -> Executor:
    """Processes of this machine: forked from a warm parent where the run wants that."""
    if site.warm:
        from disagg_cli.executors.warm import WarmExecutor

        return WarmExecutor(site.logs / "warm-parent.log", home=site.home, tell=site.tell)
    return LocalExecutor(site.logs)


class LocalExecutor:
    """Starts processes of this machine. logs: the folder of its run's logs, which tells them from other runs'."""

    def __init__(self, logs: Path = Path()) -> None:
        self._logs = os.path.realpath(logs)
        self._children: dict[int, subprocess.Popen[bytes]] = {}

    async def open(self) -> None:
        """Nothing is needed."""

    async def place(self, hosts: Sequence[Host]) -> Mapping[str, Host]:  # noqa: ARG002
        """Hosts stay as they are: all of them are this machine."""
        return {}

    async def look(
        self, hosts: Sequence[Host], ports: Mapping[Host, Mapping[int, str]], paths: Sequence[str]
    ) -> tuple[HostFacts, ...]:
        """Look at this machine."""
        wanted = {host.address: list(ports[host]) for host in ports}
        return (host_facts(hosts[0].name, await asyncio.to_thread(survey.host, wanted, paths), gather()),)

    async def provide(self, hosts: Sequence[Host], folder: Path) -> None:
        """It is here."""

    async def start(self, command: Command, log: Path) -> Handle:
        """Start a process. LaunchFailed says why it could not be started."""
        token = _new_token()
        child = spawn(command.name, command.argv, environment(command) | mark(log, token), log)
        self._children[child.pid] = child
        return handle(command, child.pid, log, token)

    async def started(self, process: str, host: str) -> tuple[Handle, ...]:
        """What has been started here of a process and leads a session, also where nobody has noted it."""
        found = await marked(host)
        return tuple(one for one in found if one.name == process and str(one.log.parent) == self._logs)

    async def poll(self, handle: Handle) -> int | None:
        """Exit code, -N for signal N, None while it runs."""
        if child := self._children.get(handle.pid):
            return child.poll()
        same = _of_this_boot(handle) and sessions.same_process(handle.pid, handle.born)
        return None if same else UNKNOWN_EXIT

    async def terminate(self, handle: Handle) -> None:
        """Ask the process to end."""
        if await self.poll(handle) is None:
            sessions.send(handle.pid, signal.SIGTERM)

    async def kill(self, handle: Handle) -> None:
        """End every process of the session."""
        if not _reused(handle):
            sessions.kill_session(handle.pid)

    async def survivors(self, handle: Handle) -> tuple[int, ...]:
        """Pids of the session that still run."""
        if child := self._children.get(handle.pid):
            child.poll()
        return () if _reused(handle) else sessions.members(handle.pid)

    async def collect(self, handle: Handle) -> None:
        """Its log is here."""

    async def close(self) -> None:
        """Nothing is held beside the processes."""


def spawn(name: str, argv: Sequence[str], env: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Start a process of this machine in a session of its own, all its output into `log`. LaunchFailed says why not."""
    try:
        with log.open("ab") as output:
            return subprocess.Popen(
                argv,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    except OSError as error:
        raise LaunchFailed(f"{name} could not be started: {error}", where=argv[0]) from None


def _reused(handle: Handle) -> bool:
    """Whether the pid was given to a younger process: then no session of that name is ours. A zombie still leads."""
    leader = sessions.born(handle.pid)
    return not _of_this_boot(handle) or (leader > 0 and abs(leader - handle.born) >= 1.0)


def _new_token() -> str:
    """Names one start of a process, and the boot that it was in: after another one, nothing of it is left."""
    return f"{sessions.boot()}/{secrets.token_hex(3)}"


def mark(log: Path, token: str) -> dict[str, str]:
    """What is added to the environment of one start. The log, below the folder of its run, names it."""
    return {MARK: f"{os.path.realpath(log)} {token}"}


async def marked(host: str) -> list[Handle]:
    """What leads a session here and was started with a mark, for processes of a host."""
    marks = await asyncio.to_thread(sessions.leaders_with, MARK)
    found = [(pid, *said.rpartition(" ")[::2]) for pid, said in marks.items()]
    return [
        Handle(name=Path(log).stem, host=host, pid=pid, born=sessions.born(pid), log=Path(log), token=token)
        for pid, log, token in found
    ]


def _of_this_boot(handle: Handle) -> bool:
    return handle.token.partition("/")[0] in ("", sessions.boot())


def environment(command: Command) -> dict[str, str]:
    """The environment of a local process: this one's, with the command's settings on top."""
    return inherit(command.env)


def inherit(settings: Mapping[str, str]) -> dict[str, str]:
    """This process's environment with these settings on top; folders of PYTHONPATH are added to those that it has.

    What turns disagg's own hooks on is not inherited: it is for the command to say. Nor is the mark of a process: a
    launch inside a worker of another run starts none of that run's.
    """
    env = {name: value for name, value in os.environ.items() if name not in (*MODES, MARK)}
    inherited = env.get("PYTHONPATH")
    env.update(settings)
    if "PYTHONPATH" in settings and inherited:
        env["PYTHONPATH"] = f"{settings['PYTHONPATH']}{os.pathsep}{inherited}"
    return env


def handle(command: Command, pid: int, log: Path, token: str = "") -> Handle:
    """Describe a process of this machine that has just been started."""
    born = sessions.born(pid)
    return Handle(name=command.name, host=command.host.name, pid=pid, born=born, log=log, token=token or _new_token())
