"""Executors with real processes."""

import subprocess
import sys
from pathlib import Path

import pytest
from allocation import allocated

from disagg_cli.executors.warm import SHARED_PARENT, parent_environment

TINY_PARENT = Path(__file__).parents[1] / "tiny_parent.py"


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
