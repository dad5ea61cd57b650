"""However a run ends: it is noticed within 5 s, named, nothing is left running, and the exit code is the right one.

Cheap servers stand in for SGLang; everything else is real, `disagg` itself in a process of its own.
tests/e2e/test_endings.py does the same to real servers where they are the point.
"""

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from cheap_launch import CheapLaunch, free_ports
from waiting import wait_until

from disagg_cli.runtime import disk
from disagg_cli.settings import ON_CPU

NOTICED_S = 5.0


@pytest.fixture
def launch(home, tmp_path):
    started = []

    def start(*flags, **changes):
        started.append(CheapLaunch(tmp_path, *flags, **changes))
        return started[-1]

    yield start
    for one in started:
        one.kill()


@pytest.fixture
def serving(launch):
    """A run that serves."""

    def start(**changes):
        one = launch(**changes)
        one.wait_for(" s  serving")
        assert one.run.is_dir()  # known before another one is started
        return one

    return start


def kill(run, name, signum=signal.SIGKILL):
    """Kill one of its processes; return when, by the clock that events have."""
    pid = run.process_of(name)["pid"]
    now = time.time()
    os.kill(pid, signum)
    return now


@pytest.mark.parametrize("name", ["prefill-0", "decode-1", "router"])
def test_a_process_is_killed(serving, name):
    run = serving()
    at = kill(run, name)
    assert run.ended() == 4
    (crash,) = run.state["crashes"]
    assert (crash["process"], crash["signal"], crash["exit_code"]) == (name, "SIGKILL", -9)
    assert f"error: {name} died: killed by SIGKILL" in run.said
    assert noticed_after(run, at) < NOTICED_S


def test_two_processes_are_killed_in_the_same_moment(serving):
    """Both are named."""
    run = serving()
    for name in ("decode-0", "decode-1"):
        kill(run, name)
    assert run.ended() == 4
    assert {crash["process"] for crash in run.state["crashes"]} == {"decode-0", "decode-1"}


def noticed_after(run, at):
    """Seconds until the one death of a run was on record."""
    (died,) = [event for event in run.events("process") if event["phase"] == "failed"]
    return died["at"] - at


def test_a_crash_is_told_with_its_cause(launch):
    """On screen, in the run's record, and to a program."""
    run = launch("--json", decode={"tp": 1, "env": {"CHEAP_LAST": "launch_server.py: error: no such flag"}})
    assert run.ended() == 4
    document = json.loads(run.said[run.said.index('{\n  "schema"') :])
    crash = document["crash"]
    assert (crash["process"], crash["cause"]["name"]) == ("decode-0", "invalid-flag")
    assert crash["cause"]["line"] == "launch_server.py: error: no such flag"
    assert "cause: SGLang does not take its command line" in run.said
    assert "see `disagg explain DSG701`" in document["fix"]
    assert run.state["crashes"] == [crash]
    assert json.loads(run.disagg("status", "--json").stdout)["crashes"] == [crash]


def test_disagg_itself_is_killed(serving):
    """The workers go on serving; the next `disagg stop` ends all of them."""
    run = serving()
    run.process.kill()
    run.process.wait(30)
    assert set(run.left()) == {"prefill-0", "decode-0", "decode-1", "router"}
    assert "lost, its supervisor is gone" in run.disagg("status").stdout
    stopped = run.disagg("stop", "--json")
    assert stopped.returncode == 0
    assert run.left() == {}
    document = json.loads(stopped.stdout)
    assert (document["schema"], document["phase"], set(document["leftovers"])) == (
        "disagg.stop/1",
        "ended",
        {"prefill-0", "decode-0", "decode-1", "router"},
    )


def test_runs_side_by_side_and_one_that_is_lost(serving):
    """`disagg ps` lists both; `--clean` ends what is left of the lost one, and touches nothing of the other."""
    lost, other = serving(name="lost"), serving(name="other")
    assert [run["phase"] for run in json.loads(other.disagg("ps", "--json").stdout)["runs"]] == ["serving"] * 2
    lost.process.kill()
    lost.process.wait(30)
    listed = json.loads(other.disagg("ps", "--json").stdout)["runs"]
    assert {run["name"]: (run["phase"], run["stale"]) for run in listed} == {
        "lost": ("lost", True),
        "other": ("serving", False),
    }
    cleaned = json.loads(other.disagg("ps", "--clean", "--json").stdout)
    (done,) = cleaned["cleaned"]
    assert set(done["leftovers"]) == {"prefill-0", "decode-0", "decode-1", "router"}
    assert [run["name"] for run in cleaned["runs"]] == ["other"]
    assert lost.left() == {}
    assert len(other.left()) == 4
    other.process.send_signal(signal.SIGTERM)
    assert other.ended() == 0


def test_a_stop_from_another_terminal(serving):
    run = serving()
    assert run.disagg("stop").returncode == 0
    assert run.ended(5) == 0


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_while_workers_start(launch, signum):
    run = launch(decode={"workers": 2, "tp": 1, "env": {"CHEAP_START_S": "60"}})
    run.wait_for("prefill-0 healthy")
    run.process.send_signal(signum)
    assert run.ended() == 130
    assert "interrupted while starting" in run.said


def pipe():
    return os.pipe()


def terminal():
    return os.openpty()


@pytest.fixture(params=[pipe, terminal])
def screen(request):
    """A screen: what is shown there can be read, and then it goes."""
    reader, writer = request.param()

    class Screen:
        shown = b""
        end = writer

        def gone_after(self, text):
            os.close(writer)
            while text not in self.shown:
                self.shown += os.read(reader, 4096)
            os.close(reader)

    return Screen()


@pytest.mark.parametrize("last", [b"prefill-0 starting", b"router proven"])
def test_the_screen_goes_before_it_serves(launch, screen, last):
    """As with `| grep -m1`, or a terminal that is closed: the run goes on to its end, which is in order."""
    run = launch("--exit-after-eval", screen=screen.end)
    screen.gone_after(last)
    assert run.ended() == 0
    assert (run.state["phase"], run.state["reason"]) == ("ended", "stopped")
    assert any(event.get("phase") == "proven" for event in run.events("process"))


def test_the_screen_goes_with_the_ctrl_c_that_ends_the_run(launch, screen):
    """As with `| tee`, which ends by the same Ctrl-C."""
    run = launch(screen=screen.end)
    screen.gone_after(b"disagg stop, or Ctrl-C")
    run.process.send_signal(signal.SIGINT)
    assert run.ended() == 0
    assert run.state["reason"] == "stopped"


@pytest.mark.parametrize("seconds", [86400, -86400], ids=["a day forward", "a day back"])
def test_the_clock_jumps(launch, tmp_path, seconds):
    """While workers start and while they serve: no wait ends early, nobody is taken for dead, and who is, is."""
    run = launch(decode={"workers": 2, "tp": 1, "env": {"CHEAP_START_S": "2"}})
    run.wait_for("decode-1 starting")
    (tmp_path / "clock").write_text(str(seconds))
    run.wait_for(" s  serving")
    (tmp_path / "clock").write_text("0")
    assert f"{run.run.name}: serving for" in run.disagg("status").stdout
    took = [event["after_s"] for event in run.events("process")]
    assert all(0 <= seconds < 60 for seconds in took)
    assert [event["t"] for event in run.events("process")] == sorted(event["t"] for event in run.events("process"))
    at = kill(run, "decode-0")
    assert run.ended() == 4
    assert noticed_after(run, at) < NOTICED_S
    assert run.state["crashes"][0]["process"] == "decode-0"


def test_ctrl_c_twice_skips_the_time_of_grace(serving):
    stubborn = {"tp": 1, "env": {"CHEAP_STUBBORN": "1"}}
    run = serving(prefill=stubborn, decode=stubborn)
    run.process.send_signal(signal.SIGINT)
    run.wait_for("stopping")
    run.process.send_signal(signal.SIGINT)
    assert run.ended() == 0
    asked, gone = (event["t"] for event in run.events("run") if event["phase"] in ("stopping", "ended"))
    assert gone - asked < ON_CPU.grace


def test_what_is_deaf_to_sigterm_is_killed_after_the_time_of_grace(serving):
    run = serving(prefill={"tp": 1, "env": {"CHEAP_STUBBORN": "1"}})
    run.process.send_signal(signal.SIGINT)
    assert run.ended() == 0
    asked, gone = (event["t"] for event in run.events("run") if event["phase"] in ("stopping", "ended"))
    assert gone - asked > ON_CPU.grace


def test_two_launches_race_for_the_same_ports(launch, home):
    ports = free_ports()
    first, second = launch(ports=ports), launch(ports=ports)
    wait_until(lambda: " s  serving" in first.said + second.said, 60)
    winner, loser = (first, second) if " s  serving" in first.said else (second, first)
    assert loser.process.wait(60) == 3
    assert "port" in loser.said
    assert winner.process.poll() is None
    (run,) = (home / "runs").iterdir()
    assert {p["phase"] for p in json.loads((run / "state.json").read_text())["processes"]} == {"proven"}
    winner.process.send_signal(signal.SIGTERM)
    assert winner.process.wait(60) == 0


@pytest.fixture
def small_disk(home):
    """DISAGG_HOME on a disk of 4 MiB: a real one, which says ENOSPC."""
    home.mkdir()
    options = ["-t", "tmpfs", "-o", "size=4m,mode=700"]
    mounted = subprocess.run(["mount", *options, "none", home], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    yield home
    subprocess.run(["umount", "--lazy", home], check=True)


def test_the_disk_is_full(small_disk, serving):
    """It is said within 5 s; the run goes on, and deaths are still noticed. Once there is room, the record is whole."""
    run = serving()
    at = time.monotonic()
    run.ask("decode-0", "/flood/8")
    assert disk.room(small_disk) < disk.LEAST
    run.wait_for("disk full: no room for record and logs", within=NOTICED_S - (time.monotonic() - at))
    assert run.process.poll() is None
    assert "disk full" in run.disagg("status").stdout
    run.ask("decode-0", "/health")
    with (run.run / "logs" / "decode-0.log").open("r+b") as log:
        log.truncate(1000)
    run.wait_for("the disk takes record and logs again", within=NOTICED_S)
    assert [event["full"] for event in run.events("disk")] == [True, False]
    kill(run, "decode-1")
    assert run.ended() == 4
    assert run.state["reason"].startswith("decode-1 died")


def test_a_worker_dies_while_the_disk_is_full(small_disk, serving):
    run = serving()
    pids = [process["pid"] for process in run.state["processes"]]
    run.ask("decode-0", "/flood/8")
    run.wait_for("disk full")
    os.kill(pids[0], signal.SIGKILL)
    assert run.process.wait(60) == 4
    assert "error: prefill-0 died: killed by SIGKILL" in run.said
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_the_run_directory_is_removed(serving):
    """Nobody could find what serves any more: it ends, by itself."""
    run = serving()
    pids = [process["pid"] for process in run.state["processes"]]
    shutil.rmtree(run.run)
    assert run.process.wait(60) == 4
    assert "error: the run's record cannot be written: its folder was removed" in run.said
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_log_stays_within_its_bound(serving, monkeypatch):
    """A worker that prints without end does not fill the disk."""
    run = serving()
    run.ask("decode-0", f"/flood/{(disk.MOST >> 20) + 8}")
    wait_until(lambda: run.events("log"))
    log = run.run / "logs" / "decode-0.log"
    assert log.stat().st_blocks * 512 < disk.MOST
    assert log.read_bytes()[:10] == b"listening\n"
    run.ask("decode-0", "/say/goodbye")
    assert run.disagg("logs", "decode-0", "-n", "1").stdout == "goodbye\n"
    run.process.send_signal(signal.SIGTERM)
    assert run.ended() == 0
