"""Durations do not depend on the time of day, which is set back and forth while a run goes on."""

import subprocess
import sys
import time

import psutil
import pytest
from runs import a_run, process

from disagg_cli.executors import sessions
from disagg_cli.runtime import clock, control

HOUR = 3600.0


@pytest.fixture(params=[HOUR, -HOUR, 20 * 365 * 24 * HOUR], ids=["forward", "back", "from 1970 to NTP's time"])
def jump(request, monkeypatch):
    """Set the clock of this process: what time.time() says, and what psutil makes of the boot time."""

    def set_clock():
        real = time.time
        monkeypatch.setattr(time, "time", lambda: real() + request.param)
        boot = psutil.boot_time()
        monkeypatch.setattr(psutil, "boot_time", lambda: boot + request.param)
        monkeypatch.setattr(psutil._pslinux, "boot_time", lambda: boot + request.param)
        monkeypatch.setattr(psutil._pslinux, "BOOT_TIME", boot + request.param, raising=False)

    return set_clock


def test_how_long_a_phase_has_lasted(home, jump):
    recorder = a_run(process("decode-0", phase="starting"))
    jump()
    now = control.status(recorder.directory)
    assert 0 <= now.age() < 60
    assert 0 <= now.age(now.state["processes"][0]) < 60


def test_how_long_a_start_took(home, jump):
    recorder = a_run(process("decode-0", phase="starting"))
    heard = []
    recorder.listeners.append(heard.append)
    jump()
    recorder.process_phase("decode-0", "healthy")
    assert heard == ["decode-0 healthy after 0.0 s"]


def test_a_run_is_not_lost_when_the_clock_jumps(home, jump):
    recorder = a_run()
    jump()
    assert control.status(recorder.directory).supervised


def test_what_a_killed_supervisor_left_is_found_after_a_jump(home, jump):
    """Whoever tells processes by the time of day at which they began would take it for a stranger."""
    with subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"], start_new_session=True) as left:
        recorder = a_run(process("decode-0", left.pid), supervisor=left.pid)
        recorder.state.born = 1.0
        recorder.save()
        jump()
        assert control.stop(recorder.directory) == ("decode-0",)
        assert not sessions.members(left.pid)


def test_another_boot_has_only_the_time_of_day_to_go_by():
    now = time.time()
    assert clock.age(now - 5, time.monotonic() - 100, "another boot") == pytest.approx(5, abs=1)
    assert clock.age(now - 5, time.monotonic() - 100, clock.boot()) == pytest.approx(100, abs=1)


def test_never_negative():
    assert clock.age(time.time() + HOUR, 0, "another boot") == 0.0
