"""A topology for GPUs, rehearsed: real servers, all pairs proven, every answer an aggregated server's."""

import itertools
import json
from pathlib import Path

import pytest
from launched import ROOT, assert_nothing_left, run, write_topology

_ports = itertools.count(27000, 200)


def rehearse(environment, config, *flags, timeout=400):
    """Run it to its end on ports of its own, and see that nothing is left. Return exit code, report and stderr."""
    port = next(_ports)
    sets = ("--set", f"ports={port}", "--set", f"router.port={port + 190}")
    done = run(environment, "rehearse", str(config), *sets, *flags, "--json", timeout=timeout)
    report = json.loads(done.stdout)
    directory = Path(environment["DISAGG_HOME"]) / "runs" / report["run"]
    assert json.loads((directory / "rehearsal.json").read_text()) == report
    assert_nothing_left(json.loads((directory / "state.json").read_text()))
    return done.returncode, report, done.stderr


def on_gpus(folder, **changes):
    """A small topology for GPUs of which CPUs can have all ranks."""
    return write_topology(folder, **({"platform": "h200"} | changes))


def test_1p4d_of_qwen3_32b(environment):
    config = ROOT / "configs/1p4d-gb200-qwen3-32b.yaml"
    code, report, stderr = rehearse(environment, config)
    assert code == 0, stderr
    assert [pair["decode"] for pair in report["probe"]["pairs"]] == [f"decode-{n}" for n in range(4)]
    assert all(one["ok"] for one in report["probe"]["pairs"] + report["probe"]["parity"])
    assert report["agreement"] == {"questions": 20, "answered": 20, "identical": 20}
    assert report["ok"]
    assert f"passed ({report['run']})" in run(environment, "launch", str(config), "--dry-run").stdout


CLASS_H = {"model": {"synthetic": {"kv_heads": 1}}, "prefill": {"tp": 2}, "decode": {"tp": 4}}
"""T < P < D: stock SGLang 0.5.23 asserts in prefill's bootstrap thread."""


def test_what_stock_gets_wrong_passes_with_the_overlay(environment, tmp_path):
    code, report, stderr = rehearse(environment, on_gpus(tmp_path, **CLASS_H))
    assert code == 0, stderr
    assert report["agreement"]["identical"] == 20


def test_what_stock_gets_wrong_fails_without(environment, tmp_path):
    config = on_gpus(tmp_path, **CLASS_H)
    code, report, stderr = rehearse(environment, config, "--overlay", "off", "--force", "--set", "probe.timeout_s=30")
    assert (code, report["exit_code"], report["agreement"]) == (5, 5, None)
    assert "prefill bootstrap thread died: class T < P < D (TP2 -> TP4, 1 KV heads)" in stderr


@pytest.mark.parametrize(
    ("fault", "said", "within"), [("swap-heads", "KV WRONG", 120), ("lose-completion", "no answer within 30 s", 30)]
)
def test_a_planted_fault_fails_the_rehearsal(environment, fault, said, within):
    """The others: tests/e2e/rehearse_faults.py."""
    config, fewer = ROOT / "configs/1p4d-gb200-qwen3-32b.yaml", ("--set", "decode.workers=1")
    code, report, _ = rehearse(environment, config, *fewer, "--fault", fault, "--set", f"probe.timeout_s={within}")
    assert said in report["reason"]
    assert (code, report["ok"], report["fault"]) == (5, False, fault)


def test_mla_with_dp_attention(environment, tmp_path):
    """A latent is whole on every rank; with DP attention each prefill rank serves requests of its own."""
    prefill = {"tp": 2, "dp": 2, "dp_attention": True}
    config = on_gpus(tmp_path, model="deepseek-ai/DeepSeek-R1", prefill=prefill, decode={"tp": 1})
    code, report, stderr = rehearse(environment, config)
    assert code == 0, stderr
    assert report["agreement"]["identical"] == 20
