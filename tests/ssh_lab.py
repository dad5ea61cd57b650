"""Three hosts with real sshd on one machine: h1, h2, h3 at 127.0.0.2 to 4, with keys that are thrown away.

Where namespaces are allowed, each host has a hostname and processes of its own; the network is shared. Needs root, as
sshd does, and installs Debian's openssh-server where it is missing.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import debian
import psutil

SSHD = "/usr/sbin/sshd"
HOSTS = {"h1": "127.0.0.2", "h2": "127.0.0.3", "h3": "127.0.0.4"}
NAMESPACES = ("unshare", "--uts", "--mount", "--pid", "--fork", "--kill-child=SIGKILL", "--mount-proc")

NO_START_UP_FILES = "SHLVL=2"
"""Debian's bash reads ~/.bashrc for a command of sshd's, unless it takes itself for the child of a shell: what the user
of this machine has there takes its time, and is no part of the lab."""

INIT = """
hostname "$1"
mount -t tmpfs tmpfs /run && mkdir -m 755 /run/sshd
"$2" -D -e -f "$3" &
while kill -0 $! 2>/dev/null; do wait -n; done
"""
"""Process 1 of a host: it waits for whatever is orphaned there."""


def unavailable() -> str | None:
    """Why there can be no lab here."""
    if os.geteuid():
        return "sshd needs root"
    if not Path(SSHD).exists() and not shutil.which("apt-get"):
        return "no sshd here, and no apt-get to install it with"
    return None


def install() -> None:
    """Install sshd and ssh, without starting a service."""
    if Path(SSHD).exists() and shutil.which("ssh"):
        return
    debian.install("openssh-server", "openssh-client")


class SshLab:
    """The hosts. `config` is the ssh_config by which they are reached; `state` their folder for what disagg keeps."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.port = port
        self.config = folder / "ssh_config"
        self.state = folder / "state"
        self.isolated = (
            not os.environ.get("SSH_LAB_PLAIN")
            and not subprocess.run([*NAMESPACES, "true"], capture_output=True).returncode
        )
        self._inits: dict[str, subprocess.Popen[bytes]] = {}

    def up(self) -> None:
        """Write keys and configurations, and start every host."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        self.state.mkdir()
        self._keygen("id")
        shutil.copy(self.folder / "id.pub", self.folder / "authorized_keys")
        for host in HOSTS:
            self._keygen(host)
            self._configure(host)
        known = ((f"[{HOSTS[host]}]:{self.port}", (self.folder / f"{host}.pub").read_text()) for host in HOSTS)
        (self.folder / "known_hosts").write_text("".join(f"{where} {key}" for where, key in known))
        self.config.write_text("".join(self._client(host) for host in HOSTS))
        if not self.isolated:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        for host in HOSTS:
            self.boot(host)

    def down(self) -> None:
        """End every host, and all that runs on it."""
        for host in list(self._inits):
            self.crash(host)

    def boot(self, host: str) -> None:
        """Start a host, and wait until it answers."""
        sshd = [SSHD, "-D", "-e", "-f", str(self.folder / f"{host}.sshd")]
        own = [*NAMESPACES, "bash", "-c", INIT, "init", host, SSHD, sshd[-1]]
        with (self.folder / f"{host}.log").open("ab") as log:
            self._inits[host] = subprocess.Popen(
                own if self.isolated else sshd, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + 60
        while self.run(host, "true").returncode:
            assert time.monotonic() < deadline, (self.folder / f"{host}.log").read_text()
            time.sleep(0.05)

    def crash(self, host: str) -> None:
        """End a host at once, with everything on it."""
        init = self._inits.pop(host)
        for process in [*self._processes(init.pid), *self.processes(host)]:
            with contextlib.suppress(psutil.Error):
                process.kill()
        init.wait(10)

    def cut(self, host: str) -> int:
        """End the connections to a host, as a network that fails does. How many there were."""
        connections = self._sshd(host)[1:]
        for process in connections:
            with contextlib.suppress(psutil.Error):
                process.kill()
        return len(connections)

    def freeze(self, host: str) -> None:
        """Let a host's sshd hang: connections stay open and say nothing."""
        for process in self._sshd(host):
            process.send_signal(signal.SIGSTOP)

    def thaw(self, host: str) -> None:
        """Let it go on."""
        for process in self._sshd(host):
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGCONT)

    def run(self, host: str, command: str) -> subprocess.CompletedProcess[str]:
        """Run a command on a host."""
        return subprocess.run(
            ["ssh", "-F", str(self.config), host, command], capture_output=True, text=True, timeout=20
        )

    def processes(self, host: str | None = None) -> list[psutil.Process]:
        """What has been started on one host, or on all: whoever is started inherits the marks of lab and host."""
        marks = {"XDG_STATE_HOME": str(self.state)} | ({"LAB_HOST": host} if host else {})
        return [one for one in psutil.process_iter() if _has(one, marks)]

    def _sshd(self, host: str) -> list[psutil.Process]:
        """The listener, then its connections."""
        return [one for one in self._processes(self._inits[host].pid) if _name(one).startswith("sshd")]

    @staticmethod
    def _processes(pid: int) -> list[psutil.Process]:
        init = psutil.Process(pid)
        return [init, *init.children(recursive=True)]

    def _keygen(self, name: str) -> None:
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / name)], check=True)

    def _configure(self, host: str) -> None:
        (self.folder / f"{host}.sshd").write_text(
            f"ListenAddress {HOSTS[host]}:{self.port}\n"
            f"HostKey {self.folder / host}\n"
            f"AuthorizedKeysFile {self.folder / 'authorized_keys'}\n"
            f"SetEnv XDG_STATE_HOME={self.state} LAB_HOST={host} {NO_START_UP_FILES}\n"
            "PidFile none\nStrictModes no\nUsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
            "PermitRootLogin prohibit-password\nMaxStartups 100\nUseDNS no\nPrintMotd no\nPrintLastLog no\n"
        )

    def _client(self, host: str) -> str:
        settings = {
            "HostName": HOSTS[host],
            "Port": self.port,
            "User": "root",
            "IdentityFile": self.folder / "id",
            "IdentitiesOnly": "yes",
            "IdentityAgent": "none",
            "UserKnownHostsFile": self.folder / "known_hosts",
            "StrictHostKeyChecking": "yes",
            "LogLevel": "ERROR",
        }
        return f"Host {host}\n" + "".join(f"  {name} {value}\n" for name, value in settings.items())


def _name(process: psutil.Process) -> str:
    try:
        return process.name() if process.status() != psutil.STATUS_ZOMBIE else ""
    except psutil.Error:
        return ""


def _has(process: psutil.Process, environment: dict[str, str]) -> bool:
    """Whether a process runs, with this in its environment."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE and environment.items() <= process.environ().items()
    except psutil.Error:
        return False
