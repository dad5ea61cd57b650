"""What is found before the first process, and what is written down then (runtime/launch.py)."""

import json
import socket

import pytest
from deployments import FREE_PORTS as PORTS
from deployments import write_topology
from runs import mode

from disagg_cli.errors import PlanRefused, UsageError
from disagg_cli.runtime import launch, rundir
from disagg_cli.runtime.launch import check_machine, record
from disagg_cli.runtime.prepare import prepare


@pytest.fixture
def prepared(home, tmp_path):
    """The smallest topology with some changes, prepared."""
    own_ports = {"ports": PORTS, "router": {"port": PORTS + 190}}
    return lambda **changes: prepare(write_topology(tmp_path, **(own_ports | changes)))


async def test_nothing_in_the_way(prepared):
    await check_machine(prepared())


@pytest.mark.parametrize(
    ("port", "who"), [(PORTS, "prefill-0 http"), (PORTS + 1, "prefill-0 bootstrap"), (PORTS + 190, "router")]
)
async def test_a_port_that_is_taken(prepared, port, who):
    with socket.create_server(("127.0.0.1", port)), pytest.raises(PlanRefused) as caught:
        await check_machine(prepared())
    assert caught.value.what == f"ports that this topology needs are taken on 127.0.0.1: {port} ({who})"
    assert "`ports`" in caught.value.fix


async def test_a_port_that_is_taken_at_every_address(prepared):
    with socket.create_server(("0.0.0.0", PORTS + 16)), pytest.raises(PlanRefused, match="decode-0 http"):
        await check_machine(prepared())


async def test_a_router_at_an_address_of_another_machine(prepared):
    with pytest.raises(PlanRefused, match=r"203\.0\.113\.1 is no address of this machine"):
        await check_machine(prepared(router={"host": "203.0.113.1"}))


async def test_packages_that_are_not_installed(prepared, monkeypatch):
    monkeypatch.setattr(launch, "version_of", {"nixl": "1.5.1"}.get)
    with pytest.raises(PlanRefused, match="not installed here: sglang, sglang-router") as caught:
        await check_machine(prepared())
    assert caught.value.fix == "pip install 'disagg-cli[engine]'"


async def test_hosts_that_only_ssh_reaches(prepared):
    gpus = {"platform": "h100", "model": "Qwen/Qwen3-32B", "executor": {"ssh": {"hosts": ["a"]}}}
    with pytest.raises(UsageError, match="ssh executor is not built yet") as caught:
        await check_machine(prepared(**gpus))
    assert "--dry-run" in caught.value.fix


def test_what_is_written_down(prepared):
    run = rundir.create("demo")
    ready = prepared()
    recorder = record(ready, run)
    written = {path.name for path in run.path.iterdir() if path.is_file()}
    assert written == {"topology.yaml", "deployment.json", "plan.json", "versions.json", "commands.sh", "state.json"}
    assert (run.path / "topology.yaml").read_text() == ready.config.read_text()
    assert list(recorder.state.processes) == ["prefill-0", "decode-0", "decode-1", "router"]
    assert recorder.state.processes["decode-0"].url == f"http://127.0.0.1:{PORTS + 16}"
    assert all(mode(path) & 0o077 == 0 for path in run.path.iterdir())


def test_commands_for_a_person(prepared):
    run = rundir.create("demo")
    ready = prepared()
    record(ready, run)
    lines = (run.path / "commands.sh").read_text().splitlines()
    assert lines[::2] == [f"# {command.name} on localhost" for command in ready.commands]
    assert lines[1::2] == [command.shell() for command in ready.commands]


def test_versions_are_written_down(prepared):
    run = rundir.create("demo")
    record(prepared(), run)
    document = json.loads((run.path / "versions.json").read_text())
    assert document["schema"] == "disagg.versions/1"
    assert document["versions"]["disagg-cli"]
