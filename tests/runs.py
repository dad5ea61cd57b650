"""Runs as their directories tell them: state and logs, with real processes behind the pids or none."""

import os
import subprocess
import sys
from pathlib import Path

from disagg_cli.executors import sessions
from disagg_cli.runtime import rundir
from disagg_cli.runtime.phases import Phase
from disagg_cli.runtime.state import ProcessState, Recorder, RunState

SLEEP = (sys.executable, "-S", "-c", "import time; time.sleep(60)")


def gone() -> int:
    """The pid of a process that has ended and been waited for."""
    child = subprocess.Popen([sys.executable, "-S", "-c", ""])
    child.wait(10)
    return child.pid


def process(name: str, pid: int | None = None, born: float | None = None, phase: Phase = "waiting") -> ProcessState:
    """A process of a run, as it is on record."""
    at = born if born is not None else sessions.born(pid) if pid else 0.0
    return ProcessState(
        name=name, role=name.partition("-")[0], url="http://127.0.0.1:1", log="", pid=pid, born=at, phase=phase
    )


def a_run(*processes: ProcessState, name: str = "demo", supervisor: int | None = None) -> Recorder:
    """Make a run under DISAGG_HOME. supervisor: its pid, this process's by default."""
    directory = rundir.create(name)
    pid = os.getpid() if supervisor is None else supervisor
    state = RunState(
        run=directory.path.name,
        name=name,
        url="http://127.0.0.1:8000",
        processes={process.name: process for process in processes},
        pid=pid,
        born=sessions.born(pid),
    )
    recorder = Recorder(directory, state)
    recorder.save()
    return recorder


def mode(path: Path) -> int:
    """The permissions of a file or folder."""
    return path.stat().st_mode & 0o777
