"""`disagg warm`: SGLang is imported once, and one launch after the other forks its servers from that."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
from launched import Launched, run, write_topology

from disagg_cli.executors.warm import SHARED_PARENT


@pytest.fixture
def home(tmp_path: Path):
    """The environment of a home without a shared parent. What is brought up there is gone after the test."""
    environment = {name: value for name, value in os.environ.items() if name != SHARED_PARENT}
    environment |= {"DISAGG_HOME": str(tmp_path / "home"), "PYTHONUNBUFFERED": "1"}
    yield environment
    run(environment, "warm", "down", "--force")


def warm(environment: dict[str, str], *args: str, exit_code: int = 0) -> dict[str, Any]:
    done = run(environment, "warm", *args, "--json")
    assert done.returncode == exit_code, done.stderr
    return json.loads(done.stdout)


def test_one_import_serves_launch_after_launch(home: dict[str, str], tmp_path: Path, interrupt_all: list[Launched]):
    parent = warm(home, "up", "--ttl", "10m")
    config = write_topology(tmp_path, decode={"workers": 1, "tp": 1})
    open_files = _open_files(parent["pid"])

    for number in range(2):
        one = Launched(home, tmp_path, config)
        interrupt_all.append(one)
        one.wait_for("serving")
        names = {server["name"] for server in warm(home, "status")["servers"]}
        assert names == {"prefill-0", "decode-0", "router"}
        leaders = [process["pid"] for process in one.state["processes"]]
        assert {psutil.Process(pid).ppid() for pid in leaders} == {parent["pid"]}
        assert _until_it_was_ready(one) < 3, "an import of SGLang takes longer"
        if number == 1:
            refused = warm(home, "down", exit_code=2)
            assert "still serves prefill-0" in refused["what"]
        assert one.finish(15, signal.SIGTERM)[0] == 0

    after = warm(home, "status")
    assert (after["pid"], after["servers"], after["changed"]) == (parent["pid"], [], [])
    assert after["idle_s"] < 60
    assert _open_files(parent["pid"]) == open_files
    assert not psutil.Process(parent["pid"]).children()
    assert psutil.Process(parent["pid"]).num_threads() == 1
    assert warm(home, "down")["ended"] == parent["pid"]


def test_servers_are_lost_with_their_parent(home: dict[str, str], tmp_path: Path, interrupt_all: list[Launched]):
    parent = warm(home, "up")
    one = Launched(home, tmp_path, write_topology(tmp_path, decode={"workers": 1, "tp": 1}))
    interrupt_all.append(one)
    one.wait_for("loading")
    os.kill(parent["pid"], signal.SIGKILL)
    code, output = one.finish(15)
    assert code == 4
    lost = "has died; lost with it, through no fault of theirs: prefill-0, decode-0"
    assert f"the warm parent (pid {parent['pid']}) {lost}" in " ".join(output.split())
    assert {process["phase"] for process in one.state["processes"] if process["pid"]} == {"failed"}


def _until_it_was_ready(one: Launched) -> float:
    """Seconds from the start of a launch to the start of its first worker."""
    events = [json.loads(line) for line in (one.run_dir / "events.jsonl").read_text().splitlines()]
    return next(event["at"] for event in events if event["text"] == "prefill-0 starting") - events[0]["at"]


def _open_files(pid: int) -> list[str]:
    return sorted(str(file.readlink()) for file in Path(f"/proc/{pid}/fd").iterdir())
