"""What is found before the first process, and what is written down then (runtime/launch.py)."""

import json
import socket

import pytest
from deployments import FREE_PORTS as PORTS
from deployments import write_topology
from runs import mode

from disagg_cli.errors import PlanRefused, UsageError
from disagg_cli.executors import local
from disagg_cli.runtime import rundir
from disagg_cli.runtime.launch import check_machine, record
from disagg_cli.runtime.prepare import prepare
from disagg_cli.topology.loading import load_topology
from disagg_cli.topology.machine import Facts


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
    assert caught.value.what == f"DSG415 ports that are taken on localhost (127.0.0.1): {port} ({who})"
    assert "`ports`" in caught.value.fix


async def test_a_port_that_is_taken_at_every_address(prepared):
    with socket.create_server(("0.0.0.0", PORTS + 16)), pytest.raises(PlanRefused, match="decode-0 http"):
        await check_machine(prepared())


async def test_a_router_at_an_address_of_another_machine(prepared):
    with pytest.raises(PlanRefused, match=r"203\.0\.113\.1 is no address of localhost"):
        await check_machine(prepared(router={"host": "203.0.113.1"}))


async def test_packages_that_are_not_installed(prepared, monkeypatch):
    monkeypatch.setattr(local, "gather", lambda: Facts(packages={"nixl": "1.5.1"}))
    with pytest.raises(
        PlanRefused, match=r"not installed on localhost, for .*python.*: sglang, sglang-router"
    ) as caught:
        await check_machine(prepared())
    assert "pip install 'disagg-cli[engine]'" in caught.value.fix


async def test_a_place_that_there_is_no_executor_for(prepared):
    abacus = {"other": {"kind": "abacus", "hosts": ["a"]}}
    with pytest.raises(UsageError, match="there is no abacus executor") as caught:
        await check_machine(prepared(executor=abacus))
    assert "--dry-run" in caught.value.fix


def test_what_was_launched_is_written_down_and_not_where_it_came_from(home, tmp_path):
    """Bases, a variant and --set are applied; what stood for a variable does not again."""
    text = "name: x\nplatform: cpu\nmodel: synthetic\nprefill: {tp: 1}\ndecode: {tp: 1}\n"
    (tmp_path / "base.yaml").write_text(text + "variants: {two: {decode: {workers: 2}}}\n")
    (tmp_path / "x.yaml").write_text('extends: base.yaml\nengine: {env: {A: "$${B}"}, args: {cuda-graph-bs: [1, 2]}}\n')
    ready = prepare(tmp_path / "x.yaml", variant="two", sets=["prefill.tp=2"])
    run = rundir.create("x")
    record(ready, run)
    again = load_topology(run.path / "topology.yaml")
    assert (again.prefill[0].tp, again.decode[0].workers, again.engine.env["A"]) == (2, 2, "${B}")
    launched = load_topology(tmp_path / "x.yaml", variant="two", sets=["prefill.tp=2"])
    assert again.model_dump() == launched.model_dump()


def test_what_is_written_down(prepared):
    run = rundir.create("demo")
    ready = prepared()
    recorder = record(ready, run)
    written = {path.name for path in run.path.iterdir() if path.is_file()}
    assert written == {"topology.yaml", "deployment.json", "plan.json", "versions.json", "commands.sh", "state.json"}
    assert load_topology(run.path / "topology.yaml").model_dump() == load_topology(ready.config).model_dump()
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
