"""A key that servers ask for: the whole launch works with it, and it is nowhere to be seen.

Cheap servers, which refuse whoever does not show it; tests/e2e/test_cold.py does the same to real ones.
"""

import psutil
import pytest
from cheap_launch import CheapLaunch, free_ports

KEY = "planted-7d1f0a93"
GUARDED = {"engine": {"args": {"api-key": "${KEY}", "admin-api-key": "${KEY}"}}}


@pytest.fixture
def launch(home, tmp_path, monkeypatch):
    started = []

    def start(*flags, **changes):
        monkeypatch.setenv("KEY", KEY)
        started.append(CheapLaunch(tmp_path, *flags, **GUARDED | changes))
        monkeypatch.delenv("KEY")
        return started[-1]

    yield start
    for one in started:
        one.kill()


def seen(run):
    """Command lines of all processes, and files of the run and of its topology, that hold the key."""
    lines = [" ".join(one.info["cmdline"] or ()) for one in psutil.process_iter(["cmdline"])]
    files = [path for path in (*run.run.rglob("*"), *run.folder.rglob("*")) if path.is_file()]
    return [line for line in lines if KEY in line] + [path for path in files if KEY.encode() in path.read_bytes()]


def test_servers_that_ask_for_a_key(launch, monkeypatch):
    ports = free_ports()
    run = launch(ports=ports, router={"port": ports + 36, "args": {"api-key": "${KEY}"}})
    run.wait_for(" s  serving")
    servers = [psutil.Process(process["pid"]) for process in run.state["processes"]]
    assert sum(KEY in str(server.environ()) for server in servers) == 4
    assert seen(run) == []
    elsewhere = run.disagg("probe", "--no-parity")  # another terminal, which has no key
    assert elsewhere.returncode == 2
    assert "export DISAGG_API_KEY" in elsewhere.stderr
    monkeypatch.setenv("DISAGG_API_KEY", KEY)
    assert run.disagg("probe", "--no-parity").returncode == 0
    assert run.disagg("stop").returncode == 0
    assert run.ended() == 0
    assert seen(run) == []
    assert KEY not in run.said


def test_a_router_that_has_not_the_key_of_its_workers(launch):
    run = launch()
    assert run.process.wait(60) == 3
    assert "DSG905" in run.said
    assert KEY not in run.said
