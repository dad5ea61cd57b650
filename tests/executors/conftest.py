"""Executors with real processes."""

import contextlib
import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from allocation import allocated
from cheap_python import cheap_python
from launched import Launched, run
from ssh_lab import HOSTS

from disagg_cli.executors import sessions
from disagg_cli.executors.warm import SHARED_PARENT, parent_environment

TINY_PARENT = Path(__file__).parents[1] / "tiny_parent.py"
_blocks = itertools.count(12000 + os.getpid() % 3 * 2500, 100)


@pytest.fixture(scope="session")
def tiny_parent(tmp_path_factory):
    """The socket of a warm parent that forks Python programs instead of SGLang."""
    socket = tmp_path_factory.mktemp("parent") / "s"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    command = [sys.executable, TINY_PARENT, socket]
    parent = subprocess.Popen(command, env=parent_environment(), start_new_session=True, **pipes)
    assert parent.stdout.readline() == b"ready\n"
    yield socket
    parent.stdin.close()
    parent.wait(10)
    parent.stdout.close()


@pytest.fixture
def shared_parent(tiny_parent, monkeypatch):
    """The same, found by WarmExecutor."""
    monkeypatch.setenv(SHARED_PARENT, str(tiny_parent))
    return tiny_parent


@pytest.fixture
def behind_a_jump_host(ssh_lab, tmp_path):
    """Give a Python a network of its own: ssh reaches it, and nothing else does."""
    if not ssh_lab.isolated:
        pytest.skip("a network of one's own takes a namespace, which is not allowed here")
    up = "import fcntl, os, socket, struct, sys; "
    up += (
        "fcntl.ioctl(socket.socket(), 0x8914, struct.pack('16sh14x', b'lo', 0x41)); "  # netdevice(7): SIOCSIFFLAGS, up
    )
    up += "os.execv(sys.argv[1], sys.argv[1:])"

    def python(real):
        file = tmp_path / "python-of-its-own-network"
        file.write_text(f'#!/bin/sh\nexec unshare --net "{sys.executable}" -c "{up}" "{real}" "$@"\n')
        file.chmod(0o755)
        return file

    return python


@pytest.fixture(scope="module")
def salloc(slurm_lab):
    """The variables of an allocation of three nodes."""
    with allocated(slurm_lab, "--nodes=3") as env:
        yield env
    slurm_lab.empty()


@pytest.fixture
def held(salloc, slurm_lab, monkeypatch):
    """The lab, with this process in the allocation."""
    for name, value in salloc.items():
        monkeypatch.setenv(name, value)
    return slurm_lab


@pytest.fixture
def environment(home):
    return {**os.environ, "PYTHONUNBUFFERED": "1"}


@pytest.fixture
def python_there(tmp_path):
    """Make a Python with cheap servers for the hosts, which begins with a line of shell; its host is $LAB_HOST."""

    def write(line):
        file = tmp_path / "python-there"
        file.write_text(f'#!/bin/sh\n{line}\nexec "{cheap_python(tmp_path)}" "$@"\n')
        file.chmod(0o755)
        return str(file)

    return write


@pytest.fixture
def topology(ssh_lab, tmp_path):
    """Prefill on h1, a decode on h2 and one on h3, the router on h1; each pool has ports of its own.

    ssh: what is to be different below `executor.ssh`.
    """
    usual = {
        "hosts": list(HOSTS),
        "python": str(cheap_python(tmp_path)),
        "config": str(ssh_lab.config),
        "reattach_s": 5,
    }

    def write(**changes):
        port = next(
            block for block in _blocks if not any(sessions.taken(a, (block, block + 90)) for a in HOSTS.values())
        )
        document = {
            "name": "drill",
            "platform": "cpu",
            "model": "synthetic",
            "prefill": {"tp": 2},
            "decode": {"workers": 2},
            "ports": port,
            "router": {"port": port + 90} | changes.pop("router", {}),
            "probe": {"parity": False, "timeout_s": 30},
            "executor": {"ssh": usual | changes.pop("ssh", {})},
            "ignore": {"DSG403": "the hosts are loopback addresses of one machine"},
        }
        file = tmp_path / f"{port}.yaml"
        file.write_text(yaml.safe_dump(document | changes))
        return file

    return write


@pytest.fixture
def launch(ssh_lab, environment, tmp_path):
    """Launch a topology in the background, and wait until it serves. What a test leaves is ended.

    python: what disagg itself is run by.
    """
    started = []

    def start(config, *, python=sys.executable, serving=True):
        one = Launched(environment, tmp_path, config, python=python)
        started.append(one)
        if serving:
            one.wait_for("disagg stop, or Ctrl-C")
        return one

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait(10)
        if ssh_lab.processes() or list((ssh_lab.state / "disagg/remote").glob("drill-*")):
            with contextlib.suppress(ValueError):
                run(environment, "stop", "--run", one.run_dir.name, timeout=60)
