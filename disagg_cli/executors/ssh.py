"""Hosts that the user's OpenSSH reaches: configuration, agent and jump hosts are the user's own.

helper.py is sent over one connection for each host; keeper.py lets workers outlive it. Logs are followed into the
run's directory, so that everything above reads files of this machine.
"""

import asyncio
import base64
import errno
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from disagg_cli.engine.commands import Command
from disagg_cli.errors import DisaggError, LaunchFailed
from disagg_cli.executors.last_word import Sign, last_word
from disagg_cli.executors.openssh import address_of
from disagg_cli.executors.protocol import Executor, Handle, HostLost, Site
from disagg_cli.executors.ssh_connection import Connection, encoded
from disagg_cli.executors.ssh_ways import not_looked_at, with_ways
from disagg_cli.topology.deployment import Host
from disagg_cli.topology.machine import HostFacts, facts_of, host_facts

FOLLOW_S = 0.2
KEEPER_S = 10.0
"""For a keeper to write down how its worker ended, a moment after that has gone."""
KEEPER_LOOK_S = 0.02
PART = 1 << 20


def executor(site: Site) -> Executor:
    """Processes on the hosts that the topology names."""
    return SshExecutor(site)


@dataclass(slots=True)
class _Followed:
    """A worker whose host is asked after it.

    offset: how much of its log is here, None where that is not known; whole: all that its host has, as of now.
    """

    handle: Handle
    offset: int | None
    whole: bool = False
    exit: int | None = None


class SshExecutor:
    """Starts processes on other hosts. They go on without it, until their hosts have not heard of it for a while."""

    def __init__(self, site: Site) -> None:
        self._site = site
        asked = {name: site.settings.get(f"{name}_s") for name in ("reattach", "lease")}
        self._timeouts = replace(site.timeouts, **{name: value for name, value in asked.items() if value})
        self._connections: dict[str, Connection] = {}
        self._followed: dict[str, _Followed] = {}
        self._followers: dict[str, asyncio.Task[None]] = {}
        self._failed: dict[str, LaunchFailed] = {}
        self._full: set[str] = set()

    async def open(self) -> None:
        """Connections are made when they are needed."""

    async def place(self, hosts: Sequence[Host]) -> Mapping[str, Host]:
        """Hosts keep their names; their addresses are those that ssh connects to, where the topology gives no other."""
        given = self._site.settings.get("addresses", {})
        unknown = [host for host in hosts if host.name not in given]
        config, within = self._site.settings.get("config"), self._timeouts.connect
        found = await asyncio.gather(*(address_of(host.name, config, within) for host in unknown))
        return {
            host.name: replace(host, address=address or host.address)
            for host, address in zip(unknown, found, strict=True)
        }

    async def look(
        self, hosts: Sequence[Host], ports: Mapping[Host, Mapping[int, str]], paths: Sequence[str]
    ) -> tuple[HostFacts, ...]:
        """Look at every host, all at once; then try the ways between them, where their servers will listen."""
        async with asyncio.TaskGroup() as looks:  # it waits for all of them where it is cancelled: they have ssh to end
            found = [looks.create_task(self._look(host, ports, paths)) for host in hosts]
        return await with_ways([one.result() for one in found], ports, self._at, self._timeouts.silent)

    async def _look(self, host: Host, ports: Mapping[Host, Mapping[int, str]], paths: Sequence[str]) -> HostFacts:
        asked = {at.address: list(ports[at]) for at in ports if at.name == host.name}
        try:
            found: dict[str, Any] = await self._at(host.name).ask("look", ports=asked, paths=list(paths))
        except DisaggError as error:
            return not_looked_at(host.name, error)
        python = self._python if self._python.startswith("/") else found["python"]
        return host_facts(host.name, found | {"python": python}, facts_of(found["facts"]))

    async def provide(self, hosts: Sequence[Host], folder: Path) -> None:
        """Send what hosts lack of a folder; none, where it is on a file system that they share with this machine."""
        files = _files(folder)
        await asyncio.gather(*(self._provide(host, folder, files) for host in hosts))

    async def _provide(self, host: Host, folder: Path, files: Mapping[str, int]) -> None:
        there = self._at(host.name)
        try:
            for name in await there.ask("lacks", folder=str(folder), files=dict(files)):
                data = (folder / name).read_bytes()
                draft = f"{folder / name}.{host.name}-{self._site.run}.part"  # hosts may share the folder
                for at in range(0, len(data) or 1, PART):
                    part = encoded(data[at : at + PART])
                    await there.ask("put", path=str(folder / name), draft=draft, at=at, data=part, size=len(data))
        except HostLost:
            raise
        except LaunchFailed as error:
            fix = "set DISAGG_HOME to a folder that can be made under the same path on every host"
            fix = f"make room on {host.name}" if _is_full(error) else fix
            raise LaunchFailed(f"{folder} cannot be copied to {error.what}", where=host.name, fix=fix) from None

    async def start(self, command: Command, log: Path) -> Handle:
        """Start a process. LaunchFailed says why it could not be started."""
        starting = asyncio.create_task(self._start(command, log))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            await self._undo(starting, command)
            raise

    async def _undo(self, starting: "asyncio.Task[Handle]", command: Command) -> None:
        """Whoever is cancelled while it starts a process has no Handle to end it by. A host that hangs is not waited
        for: it ends by itself what nobody asks after."""
        try:
            async with asyncio.timeout(self._timeouts.grace):
                handle = await starting
                while await self.survivors(handle):
                    await self.kill(handle)
                    await asyncio.sleep(FOLLOW_S)
                await self.collect(handle)
        except LaunchFailed:
            pass
        except TimeoutError:
            lease = f"{self._timeouts.lease:.0f} s"
            self._site.tell(
                f"{command.name} may run on {command.host.name}, which hangs, until it was alone for {lease}"
            )

    async def _start(self, command: Command, log: Path) -> Handle:
        host = command.host.name
        token = f"{self._site.run}/{command.name}-{secrets.token_hex(3)}"
        try:
            found = await self._at(host).ask(
                "start", token=token, argv=list(command.argv), env=dict(command.env), lease=self._timeouts.lease
            )
        except HostLost:
            raise
        except LaunchFailed as error:
            raise _not_started(command, error) from None
        handle = Handle(name=command.name, host=host, pid=found["pid"], born=found["born"], log=log, token=token)
        self._follow(_Followed(handle, offset=0))
        _add(log, b"")
        return handle

    async def started(self, process: str, host: str) -> tuple[Handle, ...]:
        """What a host has been given to run for a process of this run. HostLost if it cannot be asked."""
        told = await self._at(host).ask("started", run=self._site.run)
        found = (self._found(host, **one) for one in told)
        return tuple(handle for handle in found if handle.name == process)

    def _found(self, host: str, token: str, pid: int, born: float) -> Handle:
        name = token.partition("/")[2].rpartition("-")[0]
        return Handle(name=name, host=host, pid=pid, born=born, log=self._site.logs / f"{name}.log", token=token)

    async def poll(self, handle: Handle) -> int | None:
        """Exit code, -N for signal N, None while it runs. HostLost if its host cannot be found again."""
        if handle.token not in self._followed:
            self._follow(_Followed(handle, offset=None))
            await self._sync(handle.host)
        followed = self._followed[handle.token]
        if followed.exit is None and handle.host in self._failed:
            raise self._failed[handle.host]
        return followed.exit

    async def terminate(self, handle: Handle) -> None:
        """Ask the process to end."""
        await self._at(handle.host).ask("terminate", token=handle.token)

    async def kill(self, handle: Handle) -> None:
        """End every process of the session."""
        await self._at(handle.host).ask("kill", token=handle.token)

    async def survivors(self, handle: Handle) -> tuple[int, ...]:
        """Pids of the session that still run. HostLost if its host cannot be asked."""
        return tuple(await self._at(handle.host).ask("alive", token=handle.token))

    async def collect(self, handle: Handle) -> None:
        """Fetch what is left of the log of a process that has ended, and remove its files there."""
        if handle.token not in self._followed:
            self._followed[handle.token] = _Followed(handle, offset=None)
        deadline = time.monotonic() + KEEPER_S
        while True:
            more = await self._sync(handle.host, handle.token)
            followed = self._followed[handle.token]
            known = more or followed.exit is not None
            if not more and (known or time.monotonic() > deadline):
                break
            await asyncio.sleep(0 if known else KEEPER_LOOK_S)
        if followed.exit is not None and followed.whole:  # else the log found no room here, and stays there
            del self._followed[handle.token]  # first: a `sync` while its folder goes would touch what is being removed
            await self._at(handle.host).ask("forget", token=handle.token)

    async def close(self) -> None:
        """Let go of the hosts."""
        for task in self._followers.values():
            task.cancel()
        await asyncio.gather(*self._followers.values(), return_exceptions=True)
        await asyncio.gather(*(connection.close() for connection in self._connections.values()))

    @property
    def _python(self) -> str:
        return str(self._site.settings.get("python", "python3"))

    def _at(self, host: str) -> Connection:
        if host not in self._connections:
            self._connections[host] = Connection(
                host,
                python=self._python,
                config=self._site.settings.get("config"),
                timeouts=self._timeouts,
                tell=self._site.tell,
            )
        return self._connections[host]

    def _follow(self, followed: _Followed) -> None:
        host = followed.handle.host
        self._followed[followed.handle.token] = followed
        if host not in self._followers or self._followers[host].done():
            self._followers[host] = asyncio.create_task(self._keep_following(host))

    async def _keep_following(self, host: str) -> None:
        """Ask after all workers of a host, over and over: it is also how a host that has gone is noticed."""
        try:
            while True:
                if not await self._sync(host):
                    await asyncio.sleep(FOLLOW_S)
        except LaunchFailed as error:
            self._failed[host] = error

    async def _sync(self, host: str, token: str | None = None) -> bool:
        """Take what is new of a host's workers, or of one of them. Whether there is more."""
        mine = [one for one in self._followed.values() if one.handle.host == host and token in (None, one.handle.token)]
        if not mine:
            return False
        offsets = {one.handle.token: one.offset for one in mine}
        found = await self._at(host).ask("sync", within=self._timeouts.silent, workers=offsets)
        self._tell_of_disk(host, full="disk_full" in found["signs"])
        news = found["workers"]
        more = [_take(one, news[one.handle.token], offsets[one.handle.token], found["signs"]) for one in mine]
        return any(more)

    def _tell_of_disk(self, host: str, *, full: bool) -> None:
        """Say it once: what workers write there is lost."""
        if full and host not in self._full:
            self._full.add(host)
            self._site.tell(f"disk full: no room for logs on {host}, below ~/.local/state")
        elif not full and host in self._full:
            self._full.remove(host)
            self._site.tell(f"the disk of {host} takes logs again")


def _not_started(command: Command, error: LaunchFailed) -> LaunchFailed:
    host = command.host.name
    if _is_full(error):
        fix = f"make room on {host} for ~/.local/state/disagg, or set XDG_STATE_HOME there"
        return LaunchFailed(f"{command.name} could not be started: disk full: {error.what}", where=host, fix=fix)
    what = f"{command.name} could not be started: {error.what}"
    if "/disagg/remote/" in error.what:  # where helper.py keeps what it knows of workers
        return LaunchFailed(what, where=host, fix=f"set XDG_STATE_HOME on {host} to a folder that can be written")
    return LaunchFailed(what, where=command.argv[0])


def _is_full(error: LaunchFailed) -> bool:
    """Whether a host's helper says that its disk, or the user's share of it, is full."""
    return any(f"[Errno {number}]" in error.what for number in (errno.ENOSPC, errno.EDQUOT))


def _take(followed: _Followed, news: Mapping[str, Any], asked: int | None, signs: Sequence[Sign]) -> bool:
    """Add what is new to the log here. Whether there is more to fetch.

    An exit code counts once the log is whole, or where a full disk here may keep it from ever being that.
    """
    if followed.offset != asked:
        return True  # another question was faster
    data = base64.b64decode(news["data"])
    if news["exit"] and followed.exit is None and not news["more"]:
        data += last_word(followed.handle.host, signs).encode()
    if fits := _add(followed.handle.log, data):
        followed.offset = news["offset"]
    followed.whole = fits and not news["more"]
    if news["exit"] is not None and (followed.whole or not fits):
        followed.exit = news["exit"]
    return bool(fits and news["more"])


def _add(log: Path, data: bytes) -> bool:
    """Add to a log here, all of it or nothing. Whether that was possible: what finds no room waits on its host."""
    try:
        with log.open("ab", buffering=0) as file:
            before = file.seek(0, os.SEEK_END)
            try:
                fits = file.write(data) == len(data)
            except OSError:
                fits = False
            if not fits:
                file.truncate(before)
            return fits
    except OSError:
        return False


def _files(folder: Path) -> dict[str, int]:
    """Names and sizes of what is in a folder."""
    return {str(path.relative_to(folder)): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
