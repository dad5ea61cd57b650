"""The demo topology, launched once and detached: what it serves, and what other terminals see of it."""

import json
import statistics
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aggregated import aggregated
from launched import answers, assert_nothing_left, greedy, run, write_topology

from disagg_cli.topology.synthetic import SyntheticModel


@dataclass(frozen=True)
class Demo:
    config: Path
    environment: dict[str, str]
    launched: dict[str, Any]

    @property
    def url(self) -> str:
        return self.launched["url"]

    @property
    def directory(self) -> Path:
        return Path(self.launched["directory"])

    def disagg(self, *args: str, timeout: float = 240) -> str:
        done = run(self.environment, *args, timeout=timeout)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def demo(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    folder = tmp_path_factory.mktemp("demo")
    environment = environment | {"DISAGG_HOME": str(folder / "home")}
    config = write_topology(folder)
    done = run(environment, "launch", str(config), "--detach", "--json")
    assert done.returncode == 0, done.stderr
    launched = json.loads(done.stdout)
    yield Demo(config, environment, launched)
    stopped = run(environment, "stop", "--json")
    assert json.loads(stopped.stdout)["leftovers"] == []
    assert_nothing_left(json.loads((Path(launched["directory"]) / "state.json").read_text()))


def test_every_pair_moved_kv_before_it_served(demo: Demo) -> None:
    probe = json.loads((demo.directory / "probe.json").read_text())
    assert {(p["prefill"], p["decode"], p["ok"]) for p in probe["pairs"]} == {
        ("prefill-0", "decode-0", True),
        ("prefill-0", "decode-1", True),
    }
    assert all(0 < p["first_token_s"] <= p["total_s"] for p in probe["pairs"])
    assert probe["router"]["tokens"] == 4


def test_greedy_tokens_equal_those_of_an_aggregated_server(demo: Demo, warm_parent: str, tmp_path: Path) -> None:
    with aggregated(warm_parent, tmp_path, SyntheticModel(), tp=1, port=21900) as url:
        assert answers(demo.url) == answers(url)


def test_each_decode_worker_serves(demo: Demo) -> None:
    for number in range(6):
        greedy(demo.url, f"question {number}", tokens=2)
    for worker in ("decode-0", "decode-1"):
        assert "POST /v1/completions" in demo.disagg("logs", worker, "-n", "200")


def test_the_run_directory_tells_it_all(demo: Demo) -> None:
    names = {path.name for path in demo.directory.iterdir()}
    assert {"topology.yaml", "deployment.json", "plan.json", "commands.sh", "versions.json", "events.jsonl"} <= names
    assert {p.stem for p in (demo.directory / "logs").iterdir()} >= {"prefill-0", "decode-0", "decode-1", "router"}
    assert demo.directory.stat().st_mode & 0o777 == 0o700


def test_status_from_another_terminal(demo: Demo) -> None:
    status = json.loads(demo.disagg("status", "--json"))
    assert (status["phase"], status["supervised"]) == ("serving", True)
    assert {p["name"]: p["phase"] for p in status["processes"]} == dict.fromkeys(
        ("prefill-0", "decode-0", "decode-1", "router"), "proven"
    )
    assert "KV proven" in demo.disagg("status")


def test_eval_against_the_last_run(demo: Demo, tmp_path: Path) -> None:
    args = ("--dataset", "mini", "--questions", "12", "--max-tokens", "16", "--concurrency", "4")
    demo.disagg("eval", "gsm8k", *args, "--out", str(tmp_path / "eval"))
    summary = json.loads((tmp_path / "eval" / "summary.json").read_text())
    assert summary["counts"]["error"] == summary["counts"]["timeout"] == 0
    assert len((tmp_path / "eval" / "samples.jsonl").read_text().splitlines()) == 12


def test_probe_from_another_terminal(demo: Demo) -> None:
    assert "KV right" in demo.disagg("probe")
    assert "moved, not compared" in demo.disagg("probe", "--no-parity")


@pytest.mark.timeout(500)
def test_twenty_probes_of_a_healthy_deployment_raise_no_alarm(demo: Demo) -> None:
    found = json.loads(demo.disagg("probe", "--times", "20", "--json", timeout=400))
    assert [one["ok"] for one in found["rounds"]] == [True] * 20
    assert statistics.median(one["seconds"] for one in found["rounds"]) < 20
    assert [(one["prefill"], one["decode"], one["first_wrong"]) for one in found["parity"]] == [
        ("prefill-0", "decode-0", None),
        ("prefill-0", "decode-1", None),
    ]


def test_a_second_launch_finds_its_ports_taken(demo: Demo) -> None:
    done = run(demo.environment, "launch", str(demo.config))
    assert done.returncode == 3
    assert "another launch is starting, or serving, on port" in done.stderr
    assert json.loads(demo.disagg("status", "--json"))["phase"] == "serving"


def test_host_memory_mode_is_announced_in_every_log(demo: Demo) -> None:
    for worker in ("prefill-0", "decode-0", "decode-1"):
        assert "disagg host-memory mode" in (demo.directory / "logs" / f"{worker}.log").read_text()


def test_the_router_knows_all_workers(demo: Demo) -> None:
    with urllib.request.urlopen(f"{demo.url}/readiness", timeout=10) as response:
        assert response.status == 200
