"""Launches on three hosts through real sshd, with cheap servers: whatever fails is named, and nothing is left anywhere.

Everything but SGLang and its router is real: disagg, ssh, the helper and the keepers.
"""

import json
import signal
import time

import psutil
import pytest
from launched import run
from ssh_drills import (
    ALL,
    NOTICED_S,
    ON_GPUS,
    ended,
    ends_with_a_death,
    events,
    gpus,
    killed,
    nothing_left,
    say,
    when,
    worker,
)
from waiting import wait_until

SECRET = "hunter2-do-not-tell"


def test_a_launch_over_ssh_serves_and_ends(launch, topology, ssh_lab):
    one = launch(topology())
    assert {p["name"]: (p["host"], p["url"].split(":")[1]) for p in one.state["processes"]} == {
        "prefill-0": ("h1", "//127.0.0.2"),
        "decode-0": ("h2", "//127.0.0.3"),
        "decode-1": ("h3", "//127.0.0.4"),
        "router": ("h1", "//127.0.0.2"),
    }
    say(one, "decode-0", "hello")
    one.process.send_signal(signal.SIGINT)
    code, _ = ended(one)
    assert code == 0
    nothing_left(ssh_lab)


@pytest.mark.parametrize("name", ["prefill-0", "decode-1", "router"])
def test_a_process_that_is_killed(launch, topology, ssh_lab, name):
    one = launch(topology())
    at = killed(one, name, ssh_lab)
    ends_with_a_death(one, name, at, ssh_lab)


def test_a_worker_that_is_killed_while_it_starts(launch, topology, ssh_lab):
    one = launch(topology(decode={"workers": 2, "env": {"CHEAP_START_S": "60"}}), serving=False)
    one.wait_for("decode-1 starting")
    at = killed(one, "decode-1", ssh_lab)
    ends_with_a_death(one, "decode-1", at, ssh_lab)


def test_all_start_again_on_all_hosts_when_one_dies(launch, topology, ssh_lab):
    """Every pair is proven in a room that nobody has been in; once there are no more restarts, the run ends."""

    def pids_and_rooms():
        pairs = json.loads((one.run_dir / "probe.json").read_text())["pairs"]
        return {worker(one, name)["pid"] for name in ALL} | {pair["room"] for pair in pairs}

    one = launch(topology(restart={"policy": "gang", "times": 1, "backoff_s": 0}))
    before = pids_and_rooms()
    killed(one, "decode-1", ssh_lab)
    wait_until(lambda: [event.get("phase") for event in events(one)].count("serving") == 2, within=60)
    again = pids_and_rooms()
    assert (len(before), len(again), before & again) == (6, 6, set())
    at = killed(one, "decode-1", ssh_lab)
    assert ended(one)[0] == 4
    assert when(one, "no more restarts: 1 within") - at < NOTICED_S
    nothing_left(ssh_lab)


def test_a_worker_on_two_hosts(launch, topology, ssh_lab, python_there, tmp_path):
    """Both nodes are told where they meet; the end of the second one's process is the end of the run."""
    python = python_there(gpus(tmp_path, h1=4, h2=4, h3=4))
    one = launch(topology(**ON_GPUS, ssh={"python": python}))
    port = worker(one, "prefill-0")["url"].rpartition(":")[2]
    for rank, host in enumerate(("h1", "h2")):
        (server,) = [" ".join(one.cmdline()) for one in ssh_lab.processes(host) if "--nnodes" in one.cmdline()]
        assert f"--dist-init-addr 127.0.0.2:{int(port) + 3} --nnodes 2 --node-rank {rank}" in server
    at = killed(one, "prefill-0.1", ssh_lab)
    ends_with_a_death(one, "prefill-0.1", at, ssh_lab)


@pytest.mark.parametrize("command", [["stop"], ["ps", "--clean"]], ids=" ".join)
def test_what_a_killed_disagg_has_left_is_ended(launch, topology, ssh_lab, environment, command):
    one = launch(topology())
    one.process.kill()
    one.process.wait(5)
    time.sleep(1)
    assert len(ssh_lab.processes()) >= 4  # nobody has told them to end
    (listed,) = json.loads(run(environment, "ps", "--json").stdout)["runs"]
    assert (listed["phase"], listed["stale"], listed["alive"]) == ("lost", True, 4)
    said = json.loads(run(environment, *command, "--json").stdout)
    (done,) = said.get("cleaned", [said])
    assert set(done["leftovers"]) == ALL
    assert one.state["phase"] == "ended"
    nothing_left(ssh_lab)


@pytest.mark.parametrize(
    ("phase", "run_phase"),
    [("waiting", "serving"), ("failed", "ended")],
    ids=["disagg was killed in that moment", "the host was lost in that moment"],
)
def test_stop_finds_a_start_that_nobody_could_note(launch, topology, ssh_lab, environment, phase, run_phase):
    """Its host knows. The record is put back to what it was between the start and its note."""
    one = launch(topology())
    one.process.kill()
    one.process.wait(5)
    state = one.state
    for process in state["processes"]:
        if process["name"] == "decode-1":
            process |= {"pid": None, "born": 0.0, "token": "", "host": "", "phase": phase}
    state["phase"] = run_phase
    (one.run_dir / "state.json").write_text(json.dumps(state))
    stopped = run(environment, "stop", "--run", one.run_dir.name, "--json")
    assert set(json.loads(stopped.stdout)["leftovers"]) == ALL
    nothing_left(ssh_lab)


def test_a_secret_is_nowhere_to_be_seen(launch, topology, ssh_lab, environment):
    """It reaches the server, and nothing else: no command line, log, record, or file of a host."""
    env, args = {"HF_TOKEN": SECRET}, {"args": {"api-key": SECRET}}
    workers = {"prefill": {"tp": 2, "env": env}, "decode": {"workers": 2, "env": env}}
    one = launch(topology(**workers, engine=args, router=args))
    servers = [process for process in ssh_lab.processes() if "cheap_python" in " ".join(process.cmdline())]
    assert sum(process.environ().get("HF_TOKEN") == SECRET for process in servers) == 3
    lines = [" ".join(process.cmdline()) for process in ssh_lab.processes()]
    lines += [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    assert not [line for line in lines if SECRET in line]
    one.process.send_signal(signal.SIGTERM)
    for folder in (ssh_lab.state, one.run_dir):
        assert _files_with(folder, SECRET) == []
    assert ended(one)[0] == 0
    assert _files_with(one.run_dir, SECRET) == []
    assert SECRET not in one.output.read_text()


def _files_with(folder, text):
    return [path for path in folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]
