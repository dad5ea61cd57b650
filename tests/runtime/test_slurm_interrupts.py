"""A launch that is interrupted, or meets a full disk: its job is ended, whatever the moment. Real Slurm."""

import json
import os
import shutil
import signal
import subprocess
import time

import pytest
from slurm_cluster import SECRET, secrets_in
from waiting import wait_until


def test_ctrl_c_where_it_is_followed(cluster):
    """As anywhere else: a run that served has ended as it should."""
    launch = cluster.launch(cluster.topology())
    cluster.said("router  http://")
    launch.send_signal(signal.SIGINT)
    assert launch.wait(60) == 0
    assert cluster.ended()["exit_code"] == 0


def slow(cluster, monkeypatch, command):
    """One of Slurm's commands takes two seconds from now on. Returned is a file that is there once it is asked."""
    (fake := cluster.folder / "bin" / command).parent.mkdir()
    fake.write_text(f'#!/bin/sh\ntouch {fake}.asked; sleep 2; exec {shutil.which(command)} "$@"\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")
    return fake.with_suffix(".asked")


def test_ctrl_c_while_it_is_submitted(cluster, monkeypatch):
    """The job has a number by then, and is ended by it."""
    asked = slow(cluster, monkeypatch, "sbatch")
    launch = cluster.launch(cluster.topology(engine={"env": {"MY_TOKEN": SECRET}}))
    wait_until(asked.exists, 30)
    launch.send_signal(signal.SIGINT)
    assert launch.wait(60) == 130
    cluster.said(f"Slurm job {cluster.number} is cancelled", 1)
    assert cluster.ended()["exit_code"] == 130
    assert secrets_in(cluster.run) == []


@pytest.mark.parametrize("submitted", [True, False], ids=["its job waits", "it has no job yet"])
def test_a_launch_that_is_killed_while_it_submits(cluster, monkeypatch, submitted):
    """A job whose number nobody has noted is found by its script; one that comes later finds nothing to run."""
    (slow := cluster.folder / "bin" / "sbatch").parent.mkdir()
    submit, asked = f"{shutil.which('sbatch')} --begin=now+{3600 * submitted} $@", f"touch {slow}.asked"
    order = f"{submit}; {asked}" if submitted else f"{asked}; sleep 3; {submit}"
    slow.write_text(f"#!/bin/sh\n{order}; sleep 5\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow.parent}:{os.environ['PATH']}")
    launch = cluster.launch(cluster.topology(engine={"env": {"MY_TOKEN": SECRET}}))
    wait_until(slow.with_suffix(".asked").exists, 30)
    launch.kill()
    launch.wait(60)
    if submitted:
        assert json.loads(cluster.disagg("status", "--json").stdout)["waiting_for"] == "Slurm (BeginTime)"
    assert cluster.disagg("stop").returncode == 0
    assert cluster.state["phase"] == "ended"
    assert secrets_in(cluster.run) == []
    if not submitted:
        log = cluster.run / "launch.log"
        wait_until(lambda: log.exists() and "no such file" in log.read_text(), 60)
    cluster.nothing_left()


def test_ctrl_c_at_the_first_look_at_the_job(cluster, monkeypatch):
    asked = slow(cluster, monkeypatch, "squeue")
    launch = cluster.launch(cluster.topology(engine={"env": {"CHEAP_START_S": "100"}}))
    wait_until(asked.exists, 30)
    launch.send_signal(signal.SIGINT)
    assert launch.wait(150) == 130
    assert cluster.ended()["exit_code"] == 130


def test_a_disk_that_is_full_once_the_job_is_submitted(cluster, monkeypatch):
    """A job that nobody can write down is cancelled."""
    cluster.home.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", cluster.home]).returncode:
        pytest.skip("no tmpfs can be mounted here")
    (sbatch := cluster.folder / "bin" / "sbatch").parent.mkdir()
    real = f"{shutil.which('sbatch')} --begin=now+1hour"
    sbatch.write_text(f'#!/bin/sh\n{real} "$@"; dd if=/dev/zero of={cluster.home}/rest 2>/dev/null; true\n')
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", f"{sbatch.parent}:{os.environ['PATH']}")
    try:
        done = cluster.disagg("launch", cluster.topology(engine={"env": {"MY_TOKEN": SECRET}}))
        assert (done.returncode, "disk full" in done.stderr) == (4, True), done.stderr
        wait_until(lambda: not cluster.lab.jobs(), 30)
        assert secrets_in(cluster.run) == []
    finally:
        subprocess.run(["umount", "-l", cluster.home], check=True)


@pytest.mark.parametrize("moment", ["pending: Slurm (Resources)", "decode-0 starting"])
def test_ctrl_c_again_and_again(cluster, moment):
    """As a terminal sends it: to disagg and to whatever of Slurm's it has just called."""
    if moment.startswith("pending"):
        cluster.hold_all()
    launch = cluster.launch(cluster.topology(engine={"env": {"CHEAP_START_S": "100", "CHEAP_STUBBORN": "1"}}))
    cluster.said(moment)
    for _ in range(8):
        if launch.poll() is None:
            os.killpg(launch.pid, signal.SIGINT)
            time.sleep(0.03)
    launch.wait(60)
    wait_until(lambda: cluster.lab.job(cluster.number)["JobState"] == "CANCELLED", 30)


def test_ctrl_c_twice_cancels_the_job(cluster):
    launch = cluster.launch(cluster.topology())
    cluster.said("router  http://")
    launch.send_signal(signal.SIGINT)
    cluster.said("once more, and the job is cancelled")
    launch.send_signal(signal.SIGINT)
    assert launch.wait(60) in (0, 130)  # disagg in the job may have ended the run before Slurm did
    assert cluster.ended(1)["phase"] == "ended"


def test_ctrl_c_three_times_where_workers_do_not_listen(cluster):
    """Slurm kills them, and disagg with them, when nobody follows the run any more."""
    launch = cluster.launch(cluster.topology(engine={"env": {"CHEAP_STUBBORN": "1"}}))
    cluster.said("router  http://")
    for _ in range(3):
        launch.send_signal(signal.SIGINT)
        time.sleep(1)
    assert launch.wait(60) == 130
    cluster.nothing_left()
    assert (cluster.state["phase"], cluster.state["exit_code"]) == ("ended", 130)


def test_a_job_that_is_stopped_while_it_waits(cluster):
    cluster.hold_all()
    launch = cluster.launch(cluster.topology(engine={"env": {"MY_TOKEN": SECRET}}))
    cluster.said("pending: Slurm (Resources)")
    launch.send_signal(signal.SIGINT)
    assert launch.wait(60) == 130
    assert (cluster.state["phase"], cluster.state["exit_code"]) == ("ended", 130)
    assert "CANCELLED" in cluster.state["reason"]
    assert cluster.number not in cluster.lab.jobs()
    assert secrets_in(cluster.run) == []
