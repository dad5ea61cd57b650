"""GSM8K against a real PD deployment: equal to an aggregated server, and honest when a worker dies in mid-run."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from aggregated import aggregated
from launched import DISAGG, Launched, run, write_topology

from disagg_cli.topology.synthetic import SyntheticModel

GSM8K = Path(__file__).parents[3] / "shared" / "data" / "gsm8k"
ASK = ("--data", str(GSM8K), "--questions", "200", "--shots", "1", "--concurrency", "32", "--max-tokens", "16")


@pytest.fixture
def launched(environment, tmp_path, interrupt_all):
    one = Launched(environment, tmp_path, write_topology(tmp_path))
    interrupt_all.append(one)
    one.wait_for("serving")
    return one


@pytest.mark.skipif(not GSM8K.exists(), reason=f"{GSM8K} is not here")
def test_answers_equal_those_of_an_aggregated_server(launched, environment, warm_parent, tmp_path):
    with aggregated(warm_parent, tmp_path, SyntheticModel(), tp=1, port=21930) as url:
        done = run(environment, "eval", "gsm8k", "--compare", url, *ASK, "--out", str(tmp_path / "o"), "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["pairs"], found["outcome"], found["failed_after"]) == (200, "PASS", 0)
    assert found["identical_share"] >= 0.95
    assert len(found["differences"]) == 200 - found["identical"]
    launched.finish(30, signal.SIGTERM)


@pytest.mark.skipif(not GSM8K.exists(), reason=f"{GSM8K} is not here")
def test_a_decode_that_dies_in_mid_run_leaves_no_verdict(launched, environment, tmp_path):
    samples = tmp_path / "o" / "samples.jsonl"
    command = [*DISAGG, "eval", "gsm8k", *ASK, "--out", str(tmp_path / "o"), "--json"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    deadline = time.monotonic() + 60
    while not (samples.exists() and samples.read_bytes().count(b"\n") >= 20) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(next(p["pid"] for p in launched.state["processes"] if p["name"] == "decode-0"), signal.SIGKILL)
    stdout, _ = process.communicate(timeout=60)
    summary = json.loads(stdout)
    assert (process.returncode, summary["verdict"]["outcome"]) == (7, "NOT JUDGED")
    assert "failed in transport" in summary["verdict"]["reason"]
    assert summary["answered"] >= 20
    assert summary["failures"]
    launched.finish(30)
