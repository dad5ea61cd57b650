"""Another kind of place is one file and one line: toy_place.py, through the whole of a launch and of a stop."""

import asyncio
import json

import pytest
import yaml
from cheap_python import cheap_python
from deployments import FREE_PORTS, SMALLEST
from runs import gone
from waiting import until

from disagg_cli.errors import UsageError
from disagg_cli.executors import sessions
from disagg_cli.executors.protocol import Site
from disagg_cli.executors.registry import EXECUTORS, make
from disagg_cli.runtime import control, rundir
from disagg_cli.runtime.launch import Launch, Options, check_machine, record
from disagg_cli.runtime.prepare import prepare


class Silent:
    def report(self, report):
        pass

    def comparison(self, comparison):
        pass

    def serving(self):
        pass


@pytest.fixture
def prepared(home, tmp_path, monkeypatch):
    monkeypatch.setitem(EXECUTORS, "toy", "toy_place")
    toy = {"kind": "toy", "hosts": ["left", "right"], "settings": {"python": str(cheap_python(tmp_path))}}
    topology = SMALLEST | {
        "executor": {"other": toy},
        "ports": FREE_PORTS + 50,
        "router": {"port": FREE_PORTS + 150},
        "probe": {"parity": False, "timeout_s": 20},
    }
    (tmp_path / "t.yaml").write_text(yaml.safe_dump(topology))
    return prepare(tmp_path / "t.yaml")


def test_a_kind_that_there_is_not():
    with pytest.raises(UsageError, match=r"there is no abacus executor; there are: local"):
        make("abacus", Site())


async def test_a_launch_on_a_fourth_kind_of_place(prepared):
    await check_machine(prepared)
    directory = rundir.create("toy")
    recorder = record(prepared, directory)
    await Launch(prepared, Options(warm=False, exit_after_eval=True), recorder, Silent()).run()
    state = directory.read("state.json")
    assert (state["phase"], state["exit_code"], state["url"]) == ("ended", 0, f"http://127.0.1.1:{FREE_PORTS + 150}")
    assert {p["name"]: (p["host"], p["url"].rpartition(":")[0]) for p in state["processes"]} == {
        "prefill-0": ("left", "http://127.0.1.1"),
        "decode-0": ("right", "http://127.0.1.2"),
        "decode-1": ("left", "http://127.0.1.1"),
        "router": ("left", "http://127.0.1.1"),
    }
    said = [json.loads(line) for line in (directory.path / "events.jsonl").read_text().splitlines()]
    told = [event["text"] for event in said if event["kind"] == "host"]
    assert told[0] == "the toy is open"
    assert sorted(told[-5:-1]) == [f"{name} is collected" for name in ("decode-0", "decode-1", "prefill-0", "router")]
    assert told[-1] == "the toy is closed"
    assert f"--host 127.0.1.2 --port {FREE_PORTS + 50}" in (directory.path / "commands.sh").read_text()


async def test_whatever_a_listener_does_no_process_is_left(prepared):
    recorder = record(prepared, rundir.create("toy"))

    def fail(text):
        if text.startswith("stopping"):
            raise RuntimeError(text)

    recorder.listeners.append(fail)
    with pytest.raises(RuntimeError, match="stopping"):
        await Launch(prepared, Options(warm=False, exit_after_eval=True), recorder, Silent()).run()
    pids = [process.pid for process in recorder.state.processes.values()]
    left = [pid for pid in pids if sessions.members(pid)]
    for pid in left:
        sessions.kill_session(pid)
    assert (all(pids), left) == (True, [])


async def test_what_a_fourth_kind_of_place_has_left_is_stopped(prepared):
    """By a process that has not started it, from the run's directory."""
    directory = rundir.create("toy")
    recorder = record(prepared, directory)
    launch = asyncio.create_task(Launch(prepared, Options(warm=False, exit_after_eval=False), recorder, Silent()).run())
    await until(lambda: recorder.state.phase == "serving")
    on_record = directory.read("state.json")
    pids = [process["pid"] for process in on_record["processes"]]
    try:
        directory.write("state.json", on_record | {"pid": gone(), "born": 1.0})
        assert set(await asyncio.to_thread(control.stop, directory)) == {"prefill-0", "decode-0", "decode-1", "router"}
        assert not any(sessions.members(pid) for pid in pids)
    finally:
        await asyncio.gather(launch, return_exceptions=True)
