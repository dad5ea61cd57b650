"""However a launch ends, nothing of it is left, and exit code and last screen say why."""

import contextlib
import json
import os
import shutil
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest
from launched import Launched, answers, greedy, run, write_topology
from waiting import wait_until

from disagg_cli.executors import sessions


@pytest.fixture
def launch(environment: dict[str, str], tmp_path: Path, interrupt_all: list[Launched]):
    def start(config: Path, *flags: str) -> Launched:
        interrupt_all.append(Launched(environment, tmp_path, config, *flags))
        return interrupt_all[-1]

    return start


@pytest.mark.parametrize(
    ("moment", "signum"),
    [
        ("decode-1 starting", signal.SIGINT),
        ("loading", signal.SIGTERM),
        ("decode-0 healthy", signal.SIGHUP),
        ("probing", signal.SIGINT),
    ],
)
def test_interrupted_before_it_serves(launch, tmp_path: Path, moment: str, signum: int) -> None:
    one = launch(write_topology(tmp_path))
    one.wait_for(moment)
    code, output = one.finish(60, signum)
    assert code == 130
    assert "interrupted while" in output


def test_interrupted_while_sglang_is_imported(environment: dict[str, str], tmp_path: Path) -> None:
    del (alone := dict(environment))["DISAGG_WARM_PARENT"]
    one = Launched(alone, tmp_path, write_topology(tmp_path))
    one.wait_for("SGLang to be imported once")
    assert one.finish(60, signal.SIGINT)[0] == 130


def test_killed_decode_during_load(launch, tmp_path: Path) -> None:
    one = launch(write_topology(tmp_path))
    one.wait_for("serving")
    state = one.state
    victim = next(p for p in state["processes"] if p["name"] == "decode-1")
    load = [threading.Thread(target=_ask, args=(state["url"], n), daemon=True) for n in range(8)]
    for thread in load:
        thread.start()
    at = time.time()
    os.kill(victim["pid"], signal.SIGKILL)
    code, output = one.finish(60)
    assert code == 4
    assert "decode-1 died: killed by SIGKILL" in output
    events = [json.loads(line) for line in (one.run_dir / "events.jsonl").read_text().splitlines()]
    assert min(event["at"] for event in events if event.get("phase") == "failed") - at < 5


def _ask(url: str, number: int) -> None:
    with contextlib.suppress(OSError):  # the deployment is being killed
        greedy(url, f"question {number}", tokens=200)


def test_a_gang_that_was_started_again_moves_kv_again(launch, tmp_path: Path) -> None:
    """All of it: with the old decode gone, its peers would hand a new one's requests to nobody."""
    one = launch(write_topology(tmp_path, restart={"policy": "gang", "backoff_s": 0}))
    one.wait_for(" s  serving")
    before, said = one.state, answers(one.state["url"])
    victim = next(p for p in before["processes"] if p["name"] == "decode-1")
    os.kill(victim["pid"], signal.SIGKILL)
    one.wait_for("restarting")
    wait_until(lambda: one.state["phase"] == "serving", 120)
    after = one.state
    assert not {p["pid"] for p in before["processes"]} & {p["pid"] for p in after["processes"]}
    assert {p["phase"] for p in after["processes"]} == {"proven"}
    assert one.output.read_text().count("KV moved") == 4
    assert answers(after["url"]) == said
    assert one.finish(60, signal.SIGTERM)[0] == 0


def test_a_router_that_was_started_again_finds_its_workers(launch, tmp_path: Path) -> None:
    one = launch(write_topology(tmp_path, restart={"policy": "gang", "backoff_s": 0}))
    one.wait_for(" s  serving")
    router = next(p for p in one.state["processes"] if p["name"] == "router")
    os.kill(router["pid"], signal.SIGKILL)
    one.wait_for("restarting")
    wait_until(lambda: one.state["phase"] == "serving", 60)
    assert answers(one.state["url"])
    assert one.finish(60, signal.SIGTERM)[0] == 0


def test_killed_rank_takes_its_worker_with_it(launch, tmp_path: Path) -> None:
    one = launch(write_topology(tmp_path))
    one.wait_for("serving")
    server = next(p for p in one.state["processes"] if p["name"] == "prefill-0")
    children = psutil.Process(server["pid"]).children(recursive=True)
    next(child for child in children if "scheduler" in " ".join(child.cmdline())).kill()
    code, output = one.finish(60)
    assert code == 4
    assert "prefill-0 died" in output


def test_worker_that_cannot_start_is_named_with_its_last_lines(launch, tmp_path: Path) -> None:
    config = write_topology(tmp_path, engine={"args": {"load-format": "no-such-format"}})
    one = launch(config, "--force")  # `disagg check` knows the words that this flag takes
    code, output = one.finish(60)
    assert code == 4
    assert "died: exit code 2" in output
    assert "no-such-format" in output


def test_run_directory_vanishes(launch, tmp_path: Path) -> None:
    """What cannot be recorded ends the run; that the end cannot be recorded either keeps no process alive."""
    one = launch(write_topology(tmp_path))
    one.wait_for("loading")
    state = one.state
    shutil.rmtree(one.run_dir)
    code = one.process.wait(60)
    assert code == 4
    assert "record cannot be written" in one.output.read_text()
    assert not any(sessions.members(p["pid"]) for p in state["processes"] if p["pid"])


def test_stop_from_another_terminal(launch, environment: dict[str, str], tmp_path: Path) -> None:
    one = launch(write_topology(tmp_path))
    one.wait_for("serving")
    stopped = run(environment, "stop", "--run", one.run_dir.name)
    assert stopped.returncode == 0
    assert one.finish(30)[0] == 0


def test_stop_after_disagg_itself_was_killed(launch, environment: dict[str, str], tmp_path: Path) -> None:
    one = launch(write_topology(tmp_path))
    one.wait_for("serving")
    one.process.kill()
    one.process.wait(30)
    assert run(environment, "stop", "--run", one.run_dir.name).returncode == 0
    one.finish(30)
