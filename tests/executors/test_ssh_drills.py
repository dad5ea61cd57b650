"""Launches on three hosts through real sshd, with cheap servers: whatever fails is named, and nothing is left anywhere.

Everything but SGLang and its router is real: disagg, ssh, the helper and the keepers.
"""

import contextlib
import itertools
import json
import os
import signal
import sys
import time
import urllib.request

import psutil
import pytest
import yaml
from cheap_python import cheap_python
from launched import Launched, run
from ssh_lab import HOSTS
from waiting import wait_until

from disagg_cli.executors import sessions
from disagg_cli.topology.synthetic import SyntheticModel

SECRET = "hunter2-do-not-tell"

_blocks = itertools.count(12000 + os.getpid() % 3 * 2500, 100)


@pytest.fixture
def environment(home):
    return {**os.environ, "PYTHONUNBUFFERED": "1"}


@pytest.fixture
def topology(ssh_lab, tmp_path):
    """Prefill on h1, a decode on h2 and one on h3, the router on h1; each pool has ports of its own."""
    ssh = {"python": str(cheap_python(tmp_path)), "config": str(ssh_lab.config), "reattach_s": 5}

    def write(hosts=HOSTS, **changes):
        port = next(
            block for block in _blocks if not any(sessions.taken(a, (block, block + 90)) for a in HOSTS.values())
        )
        document = {
            "name": "drill",
            "platform": "cpu",
            "model": "synthetic",
            "prefill": {"tp": 2},
            "decode": {"workers": 2},
            "ports": port,
            "router": {"port": port + 90} | changes.pop("router", {}),
            "probe": {"parity": False, "timeout_s": 30},
            "executor": {"ssh": {**ssh, "hosts": list(hosts)}},
            "ignore": {"DSG403": "the hosts are loopback addresses of one machine"},
        }
        file = tmp_path / f"{port}.yaml"
        file.write_text(yaml.safe_dump(document | changes))
        return file

    return write


@pytest.fixture
def launch(ssh_lab, environment, tmp_path):
    """Launch a topology in the background, and wait until it serves. What a test leaves is ended."""
    started = []

    def start(config, *flags, serving=True):
        one = Launched(environment, tmp_path, config, *flags)
        started.append(one)
        if serving:
            one.wait_for("disagg stop, or Ctrl-C")
        return one

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait(10)
        with contextlib.suppress(ValueError):
            run(environment, "stop", "--run", one.run_dir.name, timeout=60)


def ended(one, within=60):
    """Exit code and output of a launch that ends by itself."""
    return one.process.wait(within), one.output.read_text()


def nothing_left(lab):
    """No process on any host, and no file of a run."""
    wait_until(lambda: not lab.processes())
    assert not list((lab.state / "disagg/remote").glob("drill-*"))


def worker(one, name):
    return next(process for process in one.state["processes"] if process["name"] == name)


def events(one):
    return [json.loads(line) for line in (one.run_dir / "events.jsonl").read_text().splitlines()]


def when(one, *words):
    """When an event first had all these words; None while there is none."""
    found = (event["at"] for event in events(one) if all(word in event["text"] for word in words))
    return next(found, None)


def say(one, name, word):
    """Let a server print a word, and wait until it is in its log here."""
    urllib.request.urlopen(f"{worker(one, name)['url']}/say/{word}", timeout=10).read()
    wait_until(lambda: word in (one.run_dir / f"logs/{name}.log").read_text())


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


def test_a_worker_that_is_killed(launch, topology, ssh_lab):
    one = launch(topology())
    begun = time.time()
    ssh_lab.run("h3", f"kill -9 {worker(one, 'decode-1')['pid']}")
    code, output = ended(one)
    assert code == 4
    assert "decode-1 died: killed by SIGKILL" in output
    assert when(one, "decode-1", "failed") - begun < 5
    nothing_left(ssh_lab)


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
    ("phase", "silent"), [("probing", "^/generate"), ("evaluating", "^/v1/completions.*stream"), ("serving", "^$")]
)
def test_a_host_that_disappears(launch, topology, ssh_lab, tmp_path, phase, silent):
    """Also while an answer is waited for that will not come."""
    (python := tmp_path / "python").write_text(
        f"#!/bin/sh\nexport CHEAP_SILENT='{silent}'\nexec {cheap_python(tmp_path)} \"$@\"\n"
    )
    python.chmod(0o755)
    ssh = {"hosts": list(HOSTS), "python": str(python), "config": str(ssh_lab.config), "reattach_s": 5}
    evals = {"gsm8k": {"dataset": "mini", "questions": 4}} if phase == "evaluating" else {}
    one = launch(topology(executor={"ssh": ssh}, eval=evals), serving=False)
    one.wait_for(f"s  {phase}")
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
        stopped = run(environment, "stop", "--run", one.run_dir.name)
        assert stopped.returncode == 4
        assert "nobody knows whether decode-1 still run" in stopped.stderr
        assert "h3" in stopped.stderr
    finally:
        ssh_lab.thaw("h3")
    stopped = run(environment, "stop", "--run", one.run_dir.name, "--json")
    assert (stopped.returncode, json.loads(stopped.stdout)["leftovers"]) == (0, ["decode-1"])
    nothing_left(ssh_lab)


def test_stop_after_disagg_itself_was_killed(launch, topology, ssh_lab, environment):
    one = launch(topology())
    one.process.kill()
    one.process.wait(5)
    time.sleep(1)
    assert len(ssh_lab.processes()) >= 4  # nobody has told them to end
    stopped = run(environment, "stop", "--run", one.run_dir.name, "--json")
    assert set(json.loads(stopped.stdout)["leftovers"]) == {"prefill-0", "decode-0", "decode-1", "router"}
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
    assert set(json.loads(stopped.stdout)["leftovers"]) == {"prefill-0", "decode-0", "decode-1", "router"}
    nothing_left(ssh_lab)


@pytest.mark.parametrize("moment", ["prefill-0 starting", "decode-0 healthy"])
def test_interrupted_before_it_serves(launch, topology, ssh_lab, moment):
    one = launch(topology(), serving=False)
    one.wait_for(moment)
    one.process.send_signal(signal.SIGTERM)
    assert ended(one)[0] == 130
    nothing_left(ssh_lab)


def test_interrupted_twice(launch, topology, ssh_lab):
    """The second one skips the time of grace."""
    one = launch(topology())
    one.process.send_signal(signal.SIGINT)
    one.process.send_signal(signal.SIGINT)
    assert ended(one)[0] in (0, 130)
    nothing_left(ssh_lab)


def test_interrupted_twice_while_a_host_hangs(launch, topology, ssh_lab, environment):
    """The others are seen to end meanwhile; the second one stops waiting for the host."""
    one = launch(topology())
    ssh_lab.freeze("h3")
    try:
        one.process.send_signal(signal.SIGINT)
        wait_until(lambda: {worker(one, name)["phase"] for name in ("prefill-0", "decode-0", "router")} == {"stopped"})
        one.process.send_signal(signal.SIGINT)
        code, output = ended(one, within=12)
        assert (code, "nobody knows whether it still runs" in output, "decode-1" in output[-200:]) == (4, True, True)
    finally:
        ssh_lab.thaw("h3")
    assert run(environment, "stop", "--run", one.run_dir.name).returncode == 0
    nothing_left(ssh_lab)


def test_two_launches_for_the_same_ports(launch, topology, ssh_lab):
    """The second says whose they are, before it looks at any host."""
    config = topology()
    one = launch(config)
    other = launch(config, serving=False)
    code, output = ended(other)
    assert code == 3
    assert "another launch is starting, or serving" in output
    assert one.process.poll() is None


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


def test_hosts_are_checked_first_and_all_at_once(topology, environment, ssh_lab, home):
    """Each finding names its host, and what ssh said; nothing is started where one of them is not well."""
    with ssh_lab.config.open("a") as config:
        config.write("Host h8\n  HostName 127.0.0.8\n  Port 1\n")
    config = str(topology(["h1", "h8", "nobody.invalid"]))
    checked = json.loads(run(environment, "check", "--hosts", "--json", config).stdout)
    found = [one["message"] for one in checked["topologies"][0]["findings"] if one["code"] == "DSG411"]
    assert [message.split()[0] for message in found] == ["h8", "nobody.invalid"]
    done = run(environment, "launch", config)
    assert done.returncode == 3
    assert "DSG411 h8 cannot be used: ssh: connect to host 127.0.0.8 port 1: Connection refused" in done.stderr
    assert "DSG411 nobody.invalid cannot be used: ssh: Could not resolve hostname nobody.invalid" in done.stderr
    assert "DSG411 h1" not in done.stderr
    assert "see that the host is up, and its sshd at the port that `ssh -G h8` shows" in done.stderr
    assert not (home / "runs").exists()


def test_hosts_that_only_ssh_reaches(topology, environment, ssh_lab, behind_a_jump_host, home):
    """As behind a jump host: their servers would never be seen to be healthy."""
    ssh = {"hosts": list(HOSTS), "python": str(behind_a_jump_host(sys.executable)), "config": str(ssh_lab.config)}
    config = str(topology(executor={"ssh": ssh}))
    checked = json.loads(run(environment, "check", "--hosts", "--json", config).stdout)
    found = [one["message"] for one in checked["topologies"][0]["findings"] if one["code"] == "DSG419"]
    assert [message.partition(",")[0] for message in found] == [f"ssh reaches {host}" for host in HOSTS]
    done = run(environment, "launch", config)
    assert done.returncode == 3
    assert "DSG419 ssh reaches h2, and nothing else from here reaches 127.0.0.3" in done.stderr
    assert "run disagg on a machine of the hosts' own network" in done.stderr
    assert not (home / "runs").exists()


def test_a_python_that_is_not_there(topology, environment, ssh_lab):
    ssh = {"hosts": ["h1"], "python": "/no/such/python", "config": str(ssh_lab.config)}
    done = run(environment, "launch", str(topology(executor={"ssh": ssh})))
    assert done.returncode == 3
    assert "DSG411 h1 cannot be used:" in done.stderr
    assert "executor.ssh.python" in done.stderr


def test_a_model_that_is_not_mounted_on_one_host(topology, environment, ssh_lab, tmp_path):
    """The folder is there, and empty."""
    if not ssh_lab.isolated:
        pytest.skip("hosts share every folder where namespaces are not allowed")
    (model := tmp_path / "model").mkdir()
    (model / "config.json").write_text(json.dumps(SyntheticModel().config()))
    ssh_lab.run("h2", f"mount -t tmpfs tmpfs {model}")
    try:
        checked = run(environment, "check", "--hosts", "--json", str(topology(model=str(model))))
        found = json.loads(checked.stdout)["topologies"][0]["findings"]
        assert [one["message"] for one in found if one["code"] == "DSG417"] == [f"h2 does not have {model}/config.json"]
    finally:
        ssh_lab.run("h2", f"umount {model}")


def test_a_port_that_is_taken_on_another_host(topology, environment, ssh_lab):
    config = topology()
    port = yaml.safe_load(config.read_text())["ports"]
    listen = f"import socket, time; s = socket.create_server(('127.0.0.3', {port})); time.sleep(60)"
    ssh_lab.run("h2", f'python3 -c "{listen}" >/dev/null 2>&1 </dev/null &')
    try:
        time.sleep(0.5)
        done = run(environment, "launch", str(config))
        assert done.returncode == 3
        assert f"DSG415 ports that are taken on h2 (127.0.0.3): {port} (decode-0 http)" in done.stderr
    finally:
        ssh_lab.run("h2", "pkill -f create_server")
