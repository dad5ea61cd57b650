"""Executors with real processes."""

import subprocess
import sys
from pathlib import Path

import pytest

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
