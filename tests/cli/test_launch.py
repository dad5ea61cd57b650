"""`disagg launch` up to the first process: what is refused, and that nothing has been started or written then."""

import io
import json
import signal
import socket
import subprocess

import psutil
import pytest
from command_line import DISAGG, disagg
from deployments import FREE_PORTS, ROOT, SMALLEST, write_topology
from waiting import wait_until

from disagg_cli.executors import sessions

DEMO = ROOT / "configs/1p2d-cpu.yaml"
# Twelve KV heads: six ranks hold two each, four hold three; no rank of one side is whole ranks of the other.
CROOKED = {
    "model": {"synthetic": {"attention_heads": 24, "kv_heads": 12}},
    "prefill": {"tp": 6},
    "decode": {"tp": 4},
}


@pytest.fixture
def config(tmp_path):
    """A topology in a file, by its text or by changes to the smallest one."""

    def write(text=None, **changes):
        if text is None:
            return write_topology(tmp_path, **changes)
        file = tmp_path / "t.yaml"
        file.write_text(text)
        return file

    return write


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: demo\n  platform: cpu\n", "t.yaml:2:"),
        ("- a\n", "expected a mapping with keys such as"),
        ("name: demo\nname: demo\n", "t.yaml:2:1: `name` stands twice"),
        ("platfrom: cpu\n", "t.yaml:1:1: platfrom: unknown key; did you mean `platform`?"),
        ("\x00", "t.yaml:1:1: "),
    ],
)
def test_wrong_yaml(home, config, text, said):
    done = disagg("launch", config(text))
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert not home.exists()


def test_a_file_that_is_not_there(home, tmp_path):
    done = disagg("launch", tmp_path / "none.yaml", "--json")
    assert done.returncode == json.loads(done.stdout)["exit_code"] == 2
    assert "no such file" in done.stderr


@pytest.mark.parametrize("flags", [[], ["--dry-run"], ["--detach"], ["--json"]])
def test_a_plan_that_says_no(home, config, flags):
    done = disagg("launch", config(**CROOKED), *flags)
    assert done.returncode == 3
    assert "error: the plan forbids this launch: DSG" in done.stderr
    assert "--force" in done.stderr
    assert not home.exists()


def test_one_document_also_when_the_plan_says_no(home, config):
    done = disagg("launch", config(**CROOKED), "--dry-run", "--json")
    assert done.returncode == 3
    json.loads(done.stdout)


def test_force_says_what_it_overrides(home, config):
    """It goes on to the next check, here a port that is taken."""
    with socket.create_server(("127.0.0.1", FREE_PORTS)):
        done = disagg("launch", config(**CROOKED, ports=FREE_PORTS), "--force")
    assert done.returncode == 3
    assert "--force overrides DSG" in done.stdout
    assert f"{FREE_PORTS} (prefill-0 http)" in done.stderr


@pytest.mark.parametrize("flags", [[], ["--detach"], ["--json"]])
def test_a_port_that_is_taken(home, config, flags):
    with socket.create_server(("127.0.0.1", FREE_PORTS + 16)):
        done = disagg("launch", config(ports=FREE_PORTS), *flags)
    assert done.returncode == 3
    assert f"ports that are taken on localhost (127.0.0.1): {FREE_PORTS + 16} (decode-0 http)" in done.stderr
    assert not (home / "runs").exists()


def test_a_machine_that_has_no_slurm(home, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    done = disagg("launch", ROOT / "configs/slurm-h100-1p2d.yaml")
    assert done.returncode == 2
    assert "Slurm's commands are not on this machine: sbatch" in done.stderr
    assert not home.exists()


def test_a_topology_that_its_hosts_do_not_hold(home, config):
    topology = SMALLEST | {"platform": "h100", "model": "Qwen/Qwen3-32B", "prefill": {"tp": 8}, "decode": {"tp": 8}}
    done = disagg("launch", config(**topology))
    assert done.returncode == 3
    assert "decode-0 needs 8 GPUs" in done.stderr


def test_a_dry_run_starts_and_writes_nothing(home):
    done = disagg("launch", DEMO, "--dry-run")
    assert done.returncode == 0
    assert done.stdout.count("\n# ") == 4
    assert not home.exists()


def test_a_dry_run_for_a_program(home):
    done = disagg("launch", DEMO, "--dry-run", "--json")
    document = json.loads(done.stdout)
    assert (document["schema"], document["plan"]["schema"]) == ("disagg.deployment/1", "disagg.plan/1")
    assert document["plan"]["ok"] is True
    assert [process["name"] for process in document["processes"]] == ["prefill-0", "decode-0", "decode-1", "router"]
    assert "The plan holds." in done.stderr


def test_a_detached_launch_is_told_of_changes_through_a_pipe(home, config, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps({"sets": ["decode.tp=2"], "unsets": []})))
    done = disagg("launch", config(), "--changes-on-stdin", "--dry-run", "--json")
    decode = [one for one in json.loads(done.stdout)["workers"] if one["role"] == "decode"]
    assert {one["tp"] for one in decode} == {2}


def test_a_topology_from_stdin_for_another_executor(home, config, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(config().read_bytes())))
    done = disagg("launch", "-", "--executor", "slurm", "--dry-run", "--json")
    assert json.loads(done.stdout)["executor"] == "slurm"


@pytest.mark.parametrize("words", [("launch", "-", "--detach"), ("render", "-")], ids=lambda words: words[0])
def test_a_topology_from_stdin_that_another_process_has_to_read(home, config, monkeypatch, words):
    executor = {"slurm": {"nodes": 3}} if "render" in words else "local"
    text = config(ports=FREE_PORTS, executor=executor).read_bytes()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))
    done = disagg(*words)
    assert done.returncode == 2
    assert "cannot read a topology from stdin" in done.stderr
    assert "write it to a file" in done.stderr


@pytest.fixture
def detaching(home, config):
    """A `disagg launch --detach`, as soon as it has started the detached one, and how to find that."""
    words = [DISAGG, "launch", config(ports=FREE_PORTS), "--detach", "--set", "probe.parity=false"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as launch:
        wait_until(lambda: list(home.glob("runs/*/launch.log")), 60)
        (run,) = home.glob("runs/*")

        def detached():
            lines = [(one.pid, one.info["cmdline"] or []) for one in psutil.process_iter(["cmdline"])]
            return {pid: line for pid, line in lines if str(run) in line}

        wait_until(detached)
        yield launch, detached
        launch.kill()
        for pid in detached():
            sessions.kill_session(pid)


def test_what_was_set_stands_on_no_command_line_that_stays(detaching):
    _, detached = detaching
    (line,) = detached().values()
    assert not [word for word in line if "probe.parity" in word]


def test_ctrl_c_before_a_detached_run_has_a_record(detaching):
    """It ends, too, and the exit code says so."""
    launch, detached = detaching
    launch.send_signal(signal.SIGINT)
    _, said = launch.communicate(timeout=60)
    assert (launch.returncode, detached()) == (130, {}), said
    assert "interrupted by SIGINT" in said
