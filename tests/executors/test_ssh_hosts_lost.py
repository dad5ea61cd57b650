"""Hosts that are cut off, hang, have no room or disappear: noticed within 5 s, and the host is named."""

import json
import signal
import time

import pytest
from launched import run
from ssh_drills import ended, nothing_left, say, when, worker
from waiting import wait_until


def test_a_connection_that_is_cut_is_found_again(launch, topology, ssh_lab):
    """Its workers do not notice, and what they write meanwhile is not lost."""
    one = launch(topology())
    pid = worker(one, "decode-0")["pid"]
    assert ssh_lab.cut("h2") >= 1
    wait_until(lambda: when(one, "the connection to h2 is lost"))
    wait_until(lambda: when(one, "h2 is back"), within=30)
    say(one, "decode-0", "afterwards")
    assert one.state["phase"] == "serving"
    assert ssh_lab.run("h2", f"ps -o pid= -p {pid}").stdout.strip() == str(pid)
    one.process.send_signal(signal.SIGINT)
    assert ended(one)[0] == 0
    nothing_left(ssh_lab)


def test_a_worker_that_dies_while_its_host_is_cut_off(launch, topology, ssh_lab):
    """Its keeper knows how it ended."""
    one = launch(topology())
    command = f"(sleep 0.3; kill -9 {worker(one, 'decode-0')['pid']}) >/dev/null 2>&1 </dev/null &"
    ssh_lab.run("h2", command)
    ssh_lab.cut("h2")
    code, output = ended(one)
    assert (code, "decode-0 died: killed by SIGKILL" in output) == (4, True)
    nothing_left(ssh_lab)


def test_the_disk_of_a_host_is_full(launch, topology, ssh_lab):
    """The run goes on, and names the host; why something dies there may then stand in no log, which is said as well."""
    if not ssh_lab.isolated:
        pytest.skip("hosts share every folder where namespaces are not allowed")
    folder = ssh_lab.state / "disagg/remote"
    folder.mkdir(parents=True, exist_ok=True)
    ssh_lab.run("h2", f"mount -t tmpfs -o size=512k tmpfs {folder}")
    try:
        one = launch(topology())
        begun = time.time()
        ssh_lab.run("h2", f"dd if=/dev/zero of={folder}/ballast bs=4k")
        wait_until(lambda: when(one, "disk full: no room for logs on h2"), within=20)
        assert when(one, "disk full: no room for logs on h2") - begun < 5
        assert one.state["phase"] == "serving"
        ssh_lab.run("h2", f"kill -SEGV {worker(one, 'decode-0')['pid']}")
        code, output = ended(one)
        assert code == 4
        assert "decode-0 died: killed by SIGSEGV\ncause: unknown, and the disk with its log is full" in output
        assert "as this ended on h2, the disk with its log was full" in output
        nothing_left(ssh_lab)
    finally:
        ssh_lab.run("h2", f"umount -l {folder}")


@pytest.mark.parametrize(
    ("phase", "waits"),
    [
        ("starting", "CHEAP_START_S=60"),
        ("probing", "CHEAP_SILENT='^/generate'"),
        ("evaluating", "CHEAP_SILENT='^/v1/completions.*stream'"),
        ("serving", "CHEAP_START_S=0"),
    ],
    ids=["starting", "probing", "evaluating", "serving"],
)
def test_a_host_that_disappears(launch, topology, ssh_lab, environment, python_there, phase, waits):
    """Also while an answer is waited for that will not come. What is on its disk is removed once it is back."""
    evals = {"gsm8k": {"dataset": "mini", "questions": 4}} if phase == "evaluating" else {}
    ssh = {"python": python_there(f"export {waits}"), "reattach_s": 2}
    one = launch(topology(ssh=ssh, eval=evals), serving=False)
    one.wait_for("decode-1 starting" if phase == "starting" else f"s  {phase}")
    time.sleep(0.5)
    assert one.state["phase"] == phase
    begun = time.time()
    ssh_lab.crash("h3")
    try:
        wait_until(lambda: when(one, "the connection to h3 is lost"), within=20)
        assert when(one, "the connection to h3 is lost") - begun < 5
        code, output = ended(one)
        assert (code, "h3" in output.rpartition("error:")[2]) == (4, True)
        assert not ssh_lab.processes()
    finally:
        ssh_lab.boot("h3")
    assert run(environment, "stop", "--run", one.run_dir.name).returncode == 0
    nothing_left(ssh_lab)


def test_a_host_that_hangs(launch, topology, ssh_lab, environment):
    """Nothing is refused and nothing ends: it only says nothing. What it still runs is stopped once it answers."""
    one = launch(topology())
    begun = time.time()
    ssh_lab.freeze("h3")
    try:
        wait_until(lambda: when(one, "the connection to h3 is lost"), within=20)
        assert when(one, "the connection to h3 is lost") - begun < 5
        code, output = ended(one, within=90)
        assert (code, "h3" in output.rpartition("error:")[2]) == (4, True)
        assert worker(one, "decode-1")["phase"] != "stopped"
        (listed,) = json.loads(run(environment, "ps", "--json").stdout)["runs"]
        assert (listed["phase"], listed["stale"], listed["alive"]) == ("ended", True, 1)
        stopped = run(environment, "stop", "--run", one.run_dir.name)
        assert stopped.returncode == 4
        assert "nobody knows whether decode-1 still run" in stopped.stderr
        assert "h3" in stopped.stderr
    finally:
        ssh_lab.thaw("h3")
    stopped = run(environment, "stop", "--run", one.run_dir.name, "--json")
    assert (stopped.returncode, json.loads(stopped.stdout)["leftovers"]) == (0, ["decode-1"])
    nothing_left(ssh_lab)
