"""What killed servers leave in /dev/shm is removed, and nothing else."""

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

from disagg_cli.executors import sessions
from disagg_cli.runtime import shared_memory

HOLD = """
import mmap, os, sys, time
for name in sys.argv[1:]:
    with open(name, "w+b") as file:
        file.truncate(8192)
        globals()[name] = mmap.mmap(file.fileno(), 8192)
print("ready", flush=True)
time.sleep(60)
"""


@pytest.fixture
def segment():
    made = []

    def name(kind, owner="test"):
        made.append(Path(f"/dev/shm/{kind}_{owner}_{len(made)}_{id(made):x}"))
        return str(made[-1])

    yield name
    for path in made:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def holder(*names):
    """A process in a session of its own that has these segments mapped, as a server has."""
    child = subprocess.Popen(
        [sys.executable, "-S", "-c", HOLD, *names], start_new_session=True, stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout.readline() == "ready\n"
        yield child
    finally:
        sessions.kill_session(child.pid)
        child.communicate()


def test_what_a_killed_server_leaves_is_removed(segment):
    name = segment("sgl_shm_mq")
    with holder(name) as server:
        found = shared_memory.of_session(server.pid)
    assert found == {name}
    assert Path(name).exists()
    assert shared_memory.remove(found) == (name,)
    assert not Path(name).exists()


def test_what_somebody_else_still_uses_stays(segment):
    name = segment("sgl_shm_mq")
    with holder(name):
        assert shared_memory.remove([name]) == ()
        assert Path(name).exists()


def test_segments_of_others_are_not_looked_at(segment):
    ours, nccl = segment("sglang_loads"), segment("nccl")
    with holder(ours, nccl) as server:
        assert shared_memory.of_session(server.pid) == {ours}


@pytest.mark.parametrize("name", ["/etc/hostname", "/dev/shm/../../tmp/x", "/dev/shm/sgl_shm_mq_1_that_is_gone"])
def test_what_a_record_names_by_mistake_is_not_removed(name):
    assert shared_memory.remove([name]) == ()


def test_a_session_that_has_gone():
    assert shared_memory.of_session(2**22 + 1) == frozenset()
