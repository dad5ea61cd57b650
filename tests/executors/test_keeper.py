"""The keeper of one worker: whatever becomes of those around it, the worker is ended, or it is known how it ended."""

import json
import os
import subprocess
import sys

import pytest
from places import LEAVES_A_CHILD, hold_segment, segments_of
from waiting import wait_until

from disagg_cli.executors import helper, procfs
from disagg_cli.executors.ssh_connection import modules


@pytest.fixture
def keep(tmp_path):
    """Start a keeper as the helper does. The worker's folder is `worker`, and what is started is ended."""
    folder = tmp_path / "worker"

    def start(code, *, lease=60.0):
        (tmp_path / "touch").touch()
        argv = [sys.executable, "-S", "-c", code]
        role = {"keep": {"folder": str(folder), "argv": argv, "env": dict(os.environ), "lease": lease}}
        said = "".join(json.dumps(line) + "\n" for line in (modules(), role))
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        keeper = subprocess.Popen([sys.executable, "-S", "-E", "-c", helper.BOOT], start_new_session=True, **pipes)
        keeper.stdin.write(said.encode())
        keeper.stdin.close()
        return keeper

    yield start
    for pid in procfs.members(folder):
        procfs.send(pid, 9)


def test_a_worker_and_its_end(keep, tmp_path):
    keeper = keep("raise SystemExit(3)")
    assert keeper.stdout.read() == b"started"
    wait_until(lambda: procfs.text(tmp_path / "worker/exit") == "3", within=60)
    assert keeper.wait(60) == 0
    keeper.stdout.close()


def test_a_worker_that_does_not_start(keep, tmp_path):
    (tmp_path / "worker").write_text("in its way")
    keeper = keep("pass")
    assert "File exists" in keeper.stdout.read().decode()
    assert keeper.wait(60) == 0
    keeper.stdout.close()


def test_a_helper_that_is_gone_before_it_hears_of_the_start(keep, tmp_path):
    """Its connection was lost meanwhile; the worker is kept all the same."""
    keeper = keep("import time; time.sleep(1); raise SystemExit(3)")
    keeper.stdout.close()
    wait_until(lambda: procfs.text(tmp_path / "worker/exit") == "3", within=60)
    assert keeper.wait(60) == 0


def test_what_outlives_its_leader_and_is_forgotten(keep, tmp_path):
    keeper = keep(LEAVES_A_CHILD, lease=5.0)
    assert keeper.stdout.read() == b"started"
    wait_until(lambda: procfs.text(tmp_path / "worker/exit") == "0", within=60)
    assert len(procfs.members(tmp_path / "worker")) == 1
    wait_until(lambda: not procfs.members(tmp_path / "worker"), within=60)
    assert keeper.wait(60) == 0
    keeper.stdout.close()


def test_shared_memory_of_a_worker_that_dies(keep, tmp_path):
    """It is looked at while it lives: after a second, two, four, ..."""
    keeper = keep(f"{hold_segment(tmp_path.name)}; import os, time; time.sleep(8); os._exit(1)")
    wait_until(lambda: segments_of(tmp_path.name), within=60)
    assert keeper.wait(60) == 0
    assert procfs.text(tmp_path / "worker/exit") == "1"
    assert not segments_of(tmp_path.name)
    keeper.stdout.close()
