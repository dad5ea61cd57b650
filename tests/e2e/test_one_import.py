"""`disagg warm`: SGLang is imported once, and one launch after the other forks its servers from that."""

import json
import os
import signal
import urllib.request
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

    for _ in range(2):
        one = Launched(home, tmp_path, config)
        interrupt_all.append(one)
        one.wait_for("serving")
        names = {server["name"] for server in warm(home, "status")["servers"]}
        assert names == {"prefill-0", "decode-0", "router"}
        leaders = [process["pid"] for process in one.state["processes"]]
        assert {psutil.Process(pid).ppid() for pid in leaders} == {parent["pid"]}
        assert _until_its_first_worker(one) < 3, "an import of SGLang takes longer"
        assert _scheduler_metrics(one.state) > 0, "metrics of other processes need a client that is imported late"
        refused = warm(home, "down", exit_code=2)
        assert "still serves prefill-0" in refused["what"]
        if one is interrupt_all[0]:
            assert one.finish(60, signal.SIGTERM)[0] == 0
            after = warm(home, "status")
            assert (after["pid"], after["servers"], after["changed"]) == (parent["pid"], [], [])
            assert _open_files(parent["pid"]) == open_files
            assert not psutil.Process(parent["pid"]).children()
            assert psutil.Process(parent["pid"]).num_threads() == 1

    assert warm(home, "down", "--force")["ended"] == parent["pid"]
    code, output = one.finish(60)
    assert code == 4
    lost = f"the warm parent (pid {parent['pid']}) has died; lost with it, through no fault of theirs: prefill-0, "
    assert lost in " ".join(output.split())
    assert {process["phase"] for process in one.state["processes"]} == {"failed"}


def _scheduler_metrics(state: dict[str, Any]) -> int:
    """How many values prefill's /metrics has that only its scheduler knows."""
    with urllib.request.urlopen(f"{state['processes'][0]['url']}/metrics", timeout=10) as response:
        return response.read().decode().count("\nsglang:num_running_reqs{")


def _until_its_first_worker(one: Launched) -> float:
    """Seconds from the start of a launch to the start of its first worker."""
    events = [json.loads(line) for line in (one.run_dir / "events.jsonl").read_text().splitlines()]
    return next(event["at"] for event in events if event["text"] == "prefill-0 starting") - events[0]["at"]


def _open_files(pid: int) -> list[str]:
    return sorted(str(file.readlink()) for file in Path(f"/proc/{pid}/fd").iterdir())
