"""How the user's own OpenSSH is called: with which options, and where the sockets of shared connections are."""

import asyncio
import atexit
import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from disagg_cli.errors import LaunchFailed
from disagg_cli.executors import sessions
from disagg_cli.settings import Timeouts

PERSIST_S = 10
"""How long ssh keeps a connection for the next that wants it: the check before a launch, and then the launch."""

SINCE_8_7 = {"SessionType": "default", "StdinNull": "no", "ForkAfterAuthentication": "no"}
"""Options that an older ssh does not know (OpenSSH 8.7's release notes)."""

PRIVATE = "disagg-ssh-"
OWNER = "owner"
ASK_S = 10.0


def no_ssh(error: OSError) -> LaunchFailed:
    """What to say where there is no ssh."""
    return LaunchFailed(f"ssh cannot be run: {error}", fix="install the OpenSSH client")


def config_of(file: str | None) -> tuple[str, ...]:
    """The option that names an ssh_config. No shell sees it that would know where `~` is."""
    return ("-F", str(Path(file).expanduser())) if file else ()


def options(socket: Path, timeouts: Timeouts) -> tuple[str, ...]:
    """What is asked of ssh over what the user's ssh_config says, which is written for people at a terminal."""
    wanted = {
        "BatchMode": "yes",
        "ConnectTimeout": f"{timeouts.connect:.0f}",
        "ConnectionAttempts": "1",
        "ServerAliveInterval": "1",
        "ServerAliveCountMax": f"{timeouts.silent:.0f}",
        "ControlMaster": "auto",
        "ControlPath": str(socket),
        "ControlPersist": str(PERSIST_S),
        "RequestTTY": "no",
        "RemoteCommand": "none",
        "PermitLocalCommand": "no",
        "ForwardX11": "no",
        "ClearAllForwardings": "yes",  # a port that another ssh of the user's forwards already would end this one
        "ExitOnForwardFailure": "no",
        "Tunnel": "no",
        "LogLevel": "ERROR",
        **_newer_options(),
    }
    return _words(wanted)


@cache
def _newer_options() -> dict[str, str]:
    """SINCE_8_7, if this ssh knows them. IgnoreUnknown would be shorter, and would replace the user's own."""
    try:
        words = ["ssh", "-F", "/dev/null", *_words(SINCE_8_7), "-G", "--", "localhost"]
        asked = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=ASK_S, check=False)
    except (OSError, subprocess.SubprocessError):
        return {}
    return {} if asked.returncode else SINCE_8_7


def _words(options: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(word for name, value in options.items() for word in ("-o", f"{name}={value}"))


async def address_of(host: str, config: str | None, within: float) -> str | None:
    """The address that ssh connects to, as `ssh -G` says: the HostName of an alias. None where ssh does not say.

    LaunchFailed where it does not end: an ssh_config may run programs (ssh_config(5), Match exec).
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *("ssh", *config_of(config), "-G", "--", host),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        raise no_ssh(error) from None
    try:
        async with asyncio.timeout(within):
            said, _ = await process.communicate()
    except TimeoutError:
        fix = "see what it waits for: a `Match exec` in the ssh_config, or a name server"
        raise LaunchFailed(f"`ssh -G {host}` does not end within {within:.0f} s", where=host, fix=fix) from None
    finally:
        if process.returncode is None:
            sessions.kill_session(process.pid)
            await process.communicate()
    words = (line.split(" ", 1) for line in said.decode(errors="replace").splitlines())
    return next((value for name, *rest in words if name == "hostname" for value in rest), None)


@cache
def private() -> Path:
    """A folder for the sockets of shared connections; their paths must be short (unix(7): 108 bytes).

    Removed at the end; of a disagg that was killed, by the next one. LaunchFailed if it cannot be made.
    """
    for folder in Path("/tmp").glob(f"{PRIVATE}*"):
        if _abandoned(folder):
            shutil.rmtree(folder, ignore_errors=True)
    try:
        folder = Path(tempfile.mkdtemp(prefix=PRIVATE, dir="/tmp"))
        owner = os.open(folder / f"{OWNER}.part", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(owner, fcntl.LOCK_EX)  # for as long as this process lives
        (folder / f"{OWNER}.part").rename(folder / OWNER)
    except OSError as error:
        raise LaunchFailed(f"ssh's sockets find no place: {error}", where="/tmp", fix="make room there") from None
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _abandoned(folder: Path) -> bool:
    """Whether this user's disagg that made a folder has gone. What others lay there is neither read nor removed."""
    try:
        if folder.is_symlink() or folder.lstat().st_uid != os.getuid():
            return False
        owner = os.open(folder / OWNER, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(owner)
    return True
