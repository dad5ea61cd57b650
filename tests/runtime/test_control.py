"""What another terminal does with a run: status, stop, logs. It has the run's directory and nothing else."""

import asyncio
import contextlib
import errno
import signal
import subprocess
import sys

import psutil
import pytest
from command_line import disagg
from runs import SLEEP, a_run, gone, process
from waiting import wait_until

from disagg_cli.engine.commands import Command
from disagg_cli.errors import DisaggError, LaunchFailed, PlanRefused, UsageError
from disagg_cli.executors import sessions
from disagg_cli.executors.local import LocalExecutor
from disagg_cli.executors.protocol import HostLost
from disagg_cli.runtime import control, rundir
from disagg_cli.topology.deployment import Host


@contextlib.contextmanager
def running(*argv):
    """A process in a session of its own."""
    child = subprocess.Popen(argv or SLEEP, start_new_session=True, stdout=subprocess.PIPE, text=True)
    try:
        yield child
    finally:
        sessions.kill_session(child.pid)
        child.communicate()


HERE = Host(name="localhost", address="127.0.0.1", gpus=0, local=True)


def python(code):
    return sys.executable, "-S", "-c", code


STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)"
)


def test_a_supervised_run(home):
    run = a_run(process("decode-0")).directory
    now = control.status(run)
    assert (now.phase, now.supervised) == ("starting", True)
    assert now.document()["schema"] == "disagg.status/1"


def test_a_run_without_its_supervisor_is_lost(home):
    now = control.status(a_run(supervisor=gone()).directory)
    assert (now.phase, now.supervised) == ("lost", False)
    assert now.document()["phase"] == "lost"


def test_a_run_that_ended_is_not_lost(home):
    recorder = a_run(supervisor=gone())
    recorder.run_phase("ended")
    assert control.status(recorder.directory).phase == "ended"


def test_the_supervisors_pid_belongs_to_another_process_now(home):
    recorder = a_run()
    recorder.state.born -= 100
    recorder.save()
    assert control.status(recorder.directory).phase == "lost"


def test_after_a_reboot_a_strangers_pid_is_not_the_supervisors(home):
    recorder = a_run()
    recorder.state.boot = "another-boot"
    recorder.save()
    assert control.status(recorder.directory).phase == "lost"


def test_after_a_reboot_a_strangers_session_is_not_a_workers(home):
    """Its leader has gone, so that only the boot tells."""
    code = "import subprocess; print(subprocess.Popen(['sleep', '60'], stdout=subprocess.DEVNULL).pid, flush=True)"
    with running(*python(code)) as leader:
        child = int(leader.stdout.readline())
        leader.wait(10)
        worker = process("decode-0", leader.pid, born=5.0)
        worker.token = "another-boot/0a1b2c"
        assert control.stop(a_run(worker, supervisor=gone()).directory) == ()
        assert sessions.members(leader.pid) == (child,)


def test_a_supervisor_whose_host_has_another_name_by_now(home):
    recorder = a_run()
    recorder.state.host = "before-it-was-renamed"
    recorder.save()
    now = control.status(recorder.directory)
    assert (now.supervised, now.elsewhere) == (True, False)


def test_a_run_without_a_state(home):
    run = rundir.create("demo")
    with pytest.raises(UsageError, match=f"{run.path.name} has no state yet"):
        control.status(run)


def test_stop_asks_the_supervisor(home):
    with running() as supervisor:
        assert control.stop(a_run(supervisor=supervisor.pid).directory) == ()
        assert supervisor.wait(10) == -signal.SIGTERM


def test_stop_wakes_a_supervisor_that_ctrl_z_has_suspended(home):
    with running() as supervisor:
        run = a_run(supervisor=supervisor.pid).directory
        supervisor.send_signal(signal.SIGSTOP)
        control.stop(run)
        assert supervisor.wait(1) == -signal.SIGTERM


def test_stop_where_nothing_can_be_written(home, monkeypatch):
    """The disk is full: what runs is ended, and the run listed until there is room."""
    with running() as worker:
        run = a_run(process("decode-0", worker.pid), supervisor=gone()).directory

        def no_room(*_):
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as full:
            full.setattr("pathlib.Path.rename", no_room)
            assert control.stop(run) == ("decode-0",)
        assert worker.wait(1) == -signal.SIGKILL
    assert control.status(run).phase == "lost"
    control.stop(run)
    assert control.status(run).phase == "ended"


def test_stop_does_not_wait_for_ever(home, monkeypatch):
    """A supervisor that does not end is killed, and what it supervised after it."""
    monkeypatch.setattr(control, "STOP_S", 0.3)
    with running(*python(STUBBORN)) as supervisor, running() as worker:
        assert supervisor.stdout.readline() == "ready\n"
        run = a_run(process("decode-0", worker.pid), supervisor=supervisor.pid).directory
        assert control.stop(run) == ("decode-0",)
        assert (supervisor.wait(10), worker.wait(10)) == (-signal.SIGKILL, -signal.SIGKILL)


def test_stop_ends_what_outlived_its_supervisor(home):
    with running() as first, running() as second:
        run = a_run(
            process("prefill-0", first.pid), process("decode-0", second.pid), process("router"), supervisor=gone()
        ).directory
        assert control.stop(run) == ("prefill-0", "decode-0")
        assert not sessions.members(first.pid) + sessions.members(second.pid)
        assert control.status(run).phase == "ended"
        assert control.stop(run) == ()


def test_stop_ends_the_children_of_a_worker_that_has_died(home):
    """The worker is a zombie, as where PID 1 waits for nobody."""
    code = "import subprocess; print(subprocess.Popen(['sleep', '60'], stdout=subprocess.DEVNULL).pid, flush=True)"
    with running(*python(code)) as worker:
        child = int(worker.stdout.readline())
        wait_until(lambda: psutil.Process(worker.pid).status() == psutil.STATUS_ZOMBIE)
        run = a_run(process("decode-0", worker.pid), supervisor=gone()).directory
        assert control.stop(run) == ("decode-0",)
        assert not sessions.same_process(child, sessions.born(child))


def on_another_host(recorder, executor):
    recorder.state.host, recorder.state.boot = "login-2", "another-boot"
    recorder.save()
    recorder.directory.write("deployment.json", {"executor": executor})
    return recorder.directory


def test_processes_of_another_machine_can_only_be_stopped_there(home):
    with running() as stranger:
        run = on_another_host(a_run(process("decode-0", stranger.pid)), "local")
        with pytest.raises(UsageError, match="run on login-2, and only there they can be ended") as refused:
            control.stop(run)
        assert refused.value.fix.startswith("run it on login-2, or if that is gone, `disagg stop --force`")
        assert stranger.poll() is None


def test_a_run_of_a_machine_that_is_gone_is_given_up_by_force(home):
    """Nothing is killed here, and its record says what nobody knows."""
    with running() as stranger:
        run = on_another_host(a_run(process("decode-0", stranger.pid)), "local")
        done = disagg("stop", "--run", run.path.name, "--force")
        said = "given up: only on login-2 can be seen whether its processes still run"
        assert (done.returncode, " ".join(done.stdout.split())) == (0, f"{run.path.name} is {said}")
        assert (control.status(run).phase, control.status(run).state["reason"]) == ("ended", said)
        assert stranger.poll() is None


def test_a_supervisor_on_another_host_is_only_passed_over_where_that_is_asked_for(home, monkeypatch):
    """Its processes are on hosts that this one reaches too."""
    monkeypatch.setattr(control, "HEARD_S", 0.1)
    run = on_another_host(a_run(), "ssh")
    with pytest.raises(UsageError, match="is supervised on login-2") as refused:
        control.stop(run)
    assert "`disagg stop --force`" in refused.value.fix
    assert control.stop(run, force=True) == ()
    assert control.status(run).phase == "ended"


def test_stop_by_force_asks_nobody(home):
    with running(*python(STUBBORN)) as supervisor, running() as worker:
        assert supervisor.stdout.readline() == "ready\n"
        run = a_run(process("decode-0", worker.pid), supervisor=supervisor.pid).directory
        assert control.stop(run, force=True) == ("decode-0",)
        assert (supervisor.wait(10), worker.wait(10)) == (-signal.SIGKILL, -signal.SIGKILL)


def test_stop_leaves_a_stranger_alone_that_has_a_workers_pid(home):
    with running() as stranger:
        run = a_run(process("decode-0", stranger.pid, born=1.0), supervisor=gone()).directory
        assert control.stop(run) == ()
        assert stranger.poll() is None


def test_stop_of_a_run_that_has_ended(home):
    recorder = a_run(process("decode-0", gone(), born=5.0), supervisor=gone())
    recorder.run_phase("ended")
    assert control.stop(recorder.directory) == ()


def test_stop_asks_no_host_after_what_is_known_to_be_gone(home):
    """A run that was ended as it should is over; its hosts may be switched off by now."""
    one = process("decode-0", 4242, born=5.0)
    one.host, one.token = "switched-off.invalid", "demo/decode-0"
    recorder = a_run(one, supervisor=gone())
    recorder.directory.write("deployment.json", {"executor": "ssh", "executor_settings": {}})
    recorder.run_phase("ended")
    with pytest.raises(LaunchFailed, match=r"nobody knows whether decode-0 still run: switched-off\.invalid"):
        control.stop(recorder.directory)
    recorder.gone("decode-0")
    recorder.save()
    assert control.stop(recorder.directory) == ()


@pytest.mark.parametrize(
    ("kind", "fix"),
    [
        (LaunchFailed, "run `disagg stop` again once it answers"),
        (
            HostLost,
            "run `disagg stop` again once it answers; it ends them by itself after some time alone (lease_s)",
        ),
    ],
)
def test_a_lease_is_told_of_where_there_is_one(home, monkeypatch, kind, fix):
    class Silent(LocalExecutor):
        async def survivors(self, handle):
            raise kind("no answer")

    monkeypatch.setattr(control, "make", lambda *_: Silent())
    with pytest.raises(LaunchFailed, match="nobody knows whether decode-0 still run: no answer") as caught:
        control.stop(a_run(process("decode-0", 4242, born=5.0), supervisor=gone()).directory)
    assert caught.value.fix == fix


def started_unnoticed(run, name, code):
    """Start a process as a launch does that is killed before it has noted that."""
    command = Command(name=name, host=HERE, argv=python(code), env={})
    return asyncio.run(LocalExecutor(run.logs).start(command, run.log(name)))


def test_stop_finds_what_was_started_in_the_moment_its_supervisor_was_killed(home):
    """By the mark in its environment; another run's is left alone."""
    run, other = (a_run(process("decode-0"), supervisor=gone()).directory for _ in range(2))
    run.write("deployment.json", {"processes": [{"name": "decode-0", "host": "localhost"}]})
    mine, stranger = (started_unnoticed(one, "decode-0", "import time; time.sleep(60)") for one in (run, other))
    try:
        assert control.stop(run) == ("decode-0",)
        assert sessions.members(mine.pid) == ()
        assert sessions.members(stranger.pid) == (stranger.pid,)
    finally:
        sessions.kill_session(mine.pid)
        sessions.kill_session(stranger.pid)


STARTS_A_SESSION = (
    "import subprocess, sys, time; "
    "subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(60)'], start_new_session=True); "
    "time.sleep(60)"
)


def test_what_a_worker_on_record_has_started_for_itself_is_left_alone(home):
    """As its own launch, in a session of its own: it has inherited the mark, and is none of the run's processes."""
    recorder = a_run(process("decode-0"), process("decode-1"), supervisor=gone())
    recorder.directory.write("deployment.json", {"processes": [{"name": "decode-1", "host": "localhost"}]})
    handle = started_unnoticed(recorder.directory, "decode-0", STARTS_A_SESSION)
    recorder.started(handle)
    wait_until(lambda: psutil.Process(handle.pid).children())
    (child,) = psutil.Process(handle.pid).children()
    try:
        wait_until(lambda: sessions.members(child.pid))
        assert control.stop(recorder.directory) == ("decode-0",)
        assert sessions.members(child.pid) == (child.pid,)
    finally:
        sessions.kill_session(child.pid)


def test_what_stop_has_ended_is_on_record_as_gone(home):
    with running() as worker:
        run = a_run(process("decode-0", worker.pid, phase="proven"), process("router"), supervisor=gone()).directory
        control.stop(run)
    decode, router = control.status(run).state["processes"]
    assert (decode["gone"], decode["phase"]) == (True, "stopped")
    assert (router["gone"], router["phase"]) == (False, "waiting")


def test_a_detached_run_that_serves(home, monkeypatch):
    recorder = a_run()
    recorder.run_phase("starting", "workers")
    recorder.run_phase("serving")
    with running() as launch:
        assert list(control.follow_until_serving(recorder.directory, launch)) == ["starting: workers", "serving"]


@pytest.mark.parametrize(("code", "kind"), [(1, DisaggError), (3, PlanRefused), (4, LaunchFailed), (99, LaunchFailed)])
def test_a_detached_run_that_ends_early(home, code, kind):
    recorder = a_run()
    recorder.state.reason = "decode-0 died: exit code 1"
    recorder.run_phase("starting", "workers")
    with (
        running(*python(f"raise SystemExit({code})")) as launch,
        pytest.raises(kind, match="the detached run ended: decode-0 died: exit code 1") as caught,
    ):
        list(control.follow_until_serving(recorder.directory, launch))
    assert type(caught.value) is kind
    assert caught.value.where == str(recorder.directory.path / "launch.log")


def test_a_detached_run_that_dies_without_a_word(home):
    run = rundir.create("demo")
    (run.path / "launch.log").write_text("Traceback ...\n")
    with (
        running(*python("import os; os.kill(os.getpid(), 9)")) as launch,
        pytest.raises(LaunchFailed, match=r"the detached run ended: Traceback"),
    ):
        list(control.follow_until_serving(run, launch))


def test_a_summary(home):
    recorder = a_run()
    recorder.directory.write("probe.json", {"schema": "disagg.probe/1", "pairs": []})
    summary = control.summary(recorder.directory)
    assert (summary["schema"], summary["phase"], summary["url"]) == ("disagg.launch/1", "starting", recorder.state.url)
    assert summary["directory"] == str(recorder.directory.path)
    assert (summary["probe"]["pairs"], summary["eval"]) == ([], {})
