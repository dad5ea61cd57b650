"""One host through the user's own OpenSSH: a connection that is shared, watched, and found again when it is lost."""

import asyncio
import atexit
import base64
import contextlib
import hashlib
import json
import shlex
import signal
import subprocess
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from disagg_cli.errors import LaunchFailed
from disagg_cli.executors import helper, openssh, sessions
from disagg_cli.executors.protocol import HostLost
from disagg_cli.settings import Timeouts

LINE = 8 << 20
PAUSE_S = 0.3
LEAST_S = 2.0
"""For a last attempt to get a connection back: a host that is there and busy needs as long."""
LEAVE_S = 2.0
SENDS = ("procfs", "logfile", "segments", "keeper", "survey", "helper")
"""Modules that the helper is made of; each needs those before it."""

UP = "see that the host is up, and reachable from here"
PYTHON = "name the Python, 3.8 or later, that has SGLang there: executor.ssh.python"
FIXES = {
    "config file": "correct executor.ssh.config",
    "Bad configuration option": "correct the ssh_config",
    "Permission denied (": "give ssh a key that the host knows: ssh-add, or IdentityFile in ~/.ssh/config",
    "Host key verification failed": "connect once by hand, and compare the host's key: ssh {host} true",
    "Could not resolve hostname": "correct the name, or give it a HostName in ~/.ssh/config",
    "onnection refused": "see that the host is up, and its sshd at the port that `ssh -G {host}` shows",
    "timed out": UP,
    "No route to host": UP,
    "start-up file": "have it read only for people, behind `[ -t 0 ]`: ~/.bashrc on {host}",
    "restricted": "log in there as a user whose shell is not a restricted one: User in ~/.ssh/config",
    "SyntaxError": PYTHON,
    "cannot execute": PYTHON,
    "ermission denied": PYTHON,
    "ot found": PYTHON,
    "o such file": PYTHON,
    "Unknown command": PYTHON,
}
"""What ssh or the login shell says (OpenSSH 9.2, POSIX shells, csh, fish) -> what to do."""
SAID = 4
"""Lines that a failure takes at most: fish quotes what it could not run."""


class Connection:
    """Asks the helper on one host. It connects when it is first needed, and again whenever it has to."""

    def __init__(
        self, host: str, *, python: str, config: str | None, timeouts: Timeouts, tell: Callable[[str], None]
    ) -> None:
        self.host = host
        self.python = python
        file = openssh.config_of(config)
        self._socket = openssh.private() / hashlib.sha256(f"{file} {host}".encode()).hexdigest()[:12]
        self._said = self._socket.with_suffix(".said")
        self.options = (*file, *openssh.options(self._socket, timeouts))
        self.timeouts = timeouts
        self.tell = tell
        self.lost: HostLost | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._count = 0
        self._turn = asyncio.Lock()
        self._was_there = False

    async def ask(self, do: str, *, within: float | None = None, **what: Any) -> Any:
        """One answer of the helper. A question whose answer is lost with the connection is asked again.

        HostLost if the host does not answer; LaunchFailed if the helper says that it cannot.
        """
        within = within or self.timeouts.ask
        lost: list[float] = []
        while len(lost) < 2 or time.monotonic() - lost[0] < self.timeouts.reattach:
            process = await self._connected()
            try:
                answer: dict[str, Any] = await self._exchange(process, do, what, within)
            except (ConnectionError, TimeoutError) as error:
                lost.append(time.monotonic())
                await self._drop(process, str(error) or f"no answer within {within:.0f} s")
                await asyncio.sleep(PAUSE_S if len(lost) > 1 else 0)
                continue
            if "error" in answer:
                raise LaunchFailed(f"{self.host}: {answer['error']}", where=self.host)
            return answer["answer"]
        self.lost = HostLost(f"{self.host} has lost {len(lost)} connections in a row, at `{do}`", where=self.host)
        raise self.lost

    async def close(self) -> None:
        """Let go. What runs on the host goes on."""
        if self._process:
            await self._drop(self._process, "closed", quietly=True)

    async def _exchange(
        self, process: asyncio.subprocess.Process, do: str, what: dict[str, Any], within: float
    ) -> dict[str, Any]:
        assert process.stdin
        self._count += 1
        number = self._count
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        # a failure that finds its question no longer waiting is not asyncio's to print
        answer.add_done_callback(lambda one: one.cancelled() or one.exception())
        try:
            process.stdin.write(json.dumps({"id": number, "do": do, "with": what}).encode() + b"\n")
            async with asyncio.timeout(within):
                await process.stdin.drain()
                found: dict[str, Any] = await answer
                return found
        finally:
            self._answers.pop(number, None)

    async def _connected(self) -> asyncio.subprocess.Process:
        async with self._turn:
            if self._process:
                return self._process
            if self.lost:
                raise self.lost
            deadline = time.monotonic() + (self.timeouts.reattach if self._was_there else 0)
            while True:
                begun = time.monotonic()
                try:
                    self._process = await self._connect(deadline - begun)
                except HostLost as error:
                    if time.monotonic() + PAUSE_S > deadline:
                        self.lost = error
                        if self._was_there:
                            error.fix = f"`disagg stop` ends what runs there once it answers; {self._alone()}"
                            self.tell(f"{self.host} is lost ({error.what}); {self._alone()}")
                        raise
                    await asyncio.sleep(PAUSE_S)
                    continue
                if self._was_there:
                    self.tell(f"{self.host} is back after {time.monotonic() - begun:.1f} s")
                else:
                    atexit.register(self._leave)
                self._was_there = True
                self._reader = asyncio.create_task(self._read(self._process))
                return self._process

    def _alone(self) -> str:
        return f"by itself it ends what nobody has asked after for {self.timeouts.lease:.0f} s"

    async def _connect(self, left: float) -> asyncio.subprocess.Process:
        """Start ssh and, there, the helper. HostLost with ssh's own words.

        left: seconds that there are for a host which was there.
        """
        # ssh hands one string to the login shell, which knows where `~` is
        home, path = ("~/", self.python[2:]) if self.python.startswith("~/") else ("", self.python)
        words = f"exec {home}{shlex.quote(path)} -c {shlex.quote(helper.BOOT)}"
        try:
            with self._said.open("wb") as errors:
                process = await asyncio.create_subprocess_exec(
                    *("ssh", *self.options, "--", self.host, words),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=errors,
                    start_new_session=True,  # Ctrl-C is for us
                    limit=LINE,
                )
        except OSError as error:
            raise openssh.no_ssh(error) from None
        assert process.stdin
        assert process.stdout
        # At first a Python on a network disk may take its time; a host that was there is either quick or lost.
        within = min(self.timeouts.connect + 1, max(left, LEAST_S)) if self._was_there else self.timeouts.ask
        heard = b""
        try:
            async with asyncio.timeout(within):
                process.stdin.write(json.dumps(modules()).encode() + b"\n{}\n")
                while line := await process.stdout.readline():
                    if line.strip() == helper.MARK.encode():
                        return process
                    heard = line
                await process.wait()
            said = self._said.read_text(errors="replace") or heard.decode(errors="replace")
            reason = _reason(said) or f"ssh ended with {process.returncode}"
        except (TimeoutError, ConnectionError, ValueError):
            reason = f"no answer within {within:.0f} s"
        except asyncio.CancelledError:
            await _give_up(process)
            raise
        await _give_up(process)
        await self._forget_shared()
        fix = _fix(reason) or "see what `ssh {host} true` says"
        raise HostLost(f"{self.host}: {reason}", where=self.host, fix=fix.format(host=self.host))

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout
        with contextlib.suppress(ValueError):  # no JSON, or a line that has no end: the connection is of no use
            while line := await process.stdout.readline():
                answer = json.loads(line)
                if (waiting := self._answers.get(answer["id"])) and not waiting.done():
                    waiting.set_result(answer)
        self._fail(_reason(self._said.read_text(errors="replace")) or "it has ended")

    async def _drop(self, process: asyncio.subprocess.Process, reason: str, *, quietly: bool = False) -> None:
        """Give a connection up, once; the next question makes another, but not before all of this one has gone."""
        async with self._turn:
            if self._process is not process:
                return
            self._process = None
            if self._reader:
                self._reader.cancel()
            if not quietly:
                self.tell(f"the connection to {self.host} is lost ({reason}); its processes go on, trying to get back")
            self._fail(reason)
            await _end(process)
            if not quietly:
                await self._forget_shared()

    def _fail(self, reason: str) -> None:
        """No answer will come to what has been asked."""
        for waiting in self._answers.values():
            if not waiting.done():
                waiting.set_exception(ConnectionResetError(reason))

    async def _forget_shared(self) -> None:
        """End the shared connection: one that hangs would hang the next as well."""
        with contextlib.suppress(OSError):
            await asyncio.to_thread(self._leave)

    def _leave(self) -> None:
        """Tell the process that shares the connection to end."""
        with contextlib.suppress(subprocess.SubprocessError):
            # without the user's ssh_config, which may take its time (Match exec)
            words = ["ssh", "-F", "/dev/null", "-o", f"ControlPath={self._socket}", "-O", "exit", "--", self.host]
            subprocess.run(words, capture_output=True, timeout=LEAVE_S, check=False)
        self._socket.unlink(missing_ok=True)


@cache
def modules() -> dict[str, str]:
    """What is sent to a host: name -> text."""
    here = Path(__file__).parent
    folders = {"survey": here.parent / "topology"}
    return {name: (folders.get(name, here) / f"{name}.py").read_text() for name in SENDS}


async def _give_up(process: asyncio.subprocess.Process) -> None:
    """End an ssh that does not get there, with its ProxyCommand; of one that did, that belongs to who shares it."""
    sessions.kill_session(process.pid)
    await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:  # process.kill() would look for an end that is asyncio's to find, and to tell of
        sessions.send(process.pid, signal.SIGKILL)
    if process.stdin:
        process.stdin.close()
    await process.wait()


def _fix(reason: str) -> str | None:
    return next((fix for words, fix in FIXES.items() if words in reason), None)


def _reason(said: str) -> str:
    """Why there is no connection: the last line for which there is a fix, else the last one."""
    lines = [line.strip() for line in said.splitlines() if line.strip()][-SAID:]
    return next((line for line in reversed(lines) if _fix(line)), lines[-1] if lines else "")


def encoded(data: bytes) -> str:
    """Bytes as JSON carries them."""
    return base64.b64encode(data).decode()
