"""Processes by /proc, as hosts see theirs: the same as sessions.py sees here."""

import json
import os
import signal
import subprocess
import sys

import pytest
from waiting import wait_until

from disagg_cli.executors import procfs, sessions

FAMILY = "import subprocess, time; subprocess.Popen(['sleep', '60']); print('ready', flush=True); time.sleep(60)"


@pytest.fixture
def leader(tmp_path):
    """A process with a child, and the file that says which it is."""
    argv = [sys.executable, "-S", "-c", FAMILY]
    child = subprocess.Popen(argv, start_new_session=True, stdout=subprocess.PIPE)
    assert child.stdout.readline() == b"ready\n"
    (tmp_path / "leader").write_text(json.dumps(procfs.identity(child.pid)))
    yield child
    sessions.kill_session(child.pid)
    child.wait(10)
    child.stdout.close()


def test_a_process_that_runs(leader):
    known = procfs.identity(leader.pid)
    assert procfs.runs(known)
    assert abs(procfs.born(known["ticks"]) - sessions.born(leader.pid)) < 0.1


@pytest.mark.parametrize("change", [{"ticks": 1}, {"boot": "another"}])
def test_another_process_with_its_pid(leader, tmp_path, change):
    known = procfs.identity(leader.pid) | change
    (tmp_path / "leader").write_text(json.dumps(known))
    assert not procfs.runs(known)
    assert procfs.members(tmp_path) == []


def test_members(leader, tmp_path):
    assert tuple(procfs.members(tmp_path)) == tuple(sorted(sessions.members(leader.pid)))
    assert len(procfs.members(tmp_path)) == 2


def test_members_outlive_their_leader(leader, tmp_path):
    known = procfs.identity(leader.pid)
    os.kill(leader.pid, signal.SIGKILL)
    wait_until(lambda: not procfs.runs(known))
    assert len(procfs.members(tmp_path)) == 1
    leader.wait(10)
    assert len(procfs.members(tmp_path)) == 1


def test_a_worker_that_was_never_started(tmp_path):
    assert procfs.members(tmp_path) == []
    assert not procfs.runs(procfs.read_identity(tmp_path / "leader"))


def test_half_a_file_is_no_identity(tmp_path):
    (tmp_path / "leader").write_text('{"pid": 1')
    assert procfs.read_identity(tmp_path / "leader") == {}
