"""The demo topology in a Slurm job: real SGLang, NIXL and router, one step for each worker, on nodes of their own."""

import json
import os
from pathlib import Path
from typing import Any

from launched import ROOT, run

CONFIG = ROOT / "configs/1p2d-cpu.yaml"


def test_the_demo_topology_in_a_slurm_job(slurm: Any, home: Path) -> None:
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    changes = ["executor={slurm: {nodes: 3}}", "eval.gsm8k.questions=4", "eval.gsm8k.max_tokens=8"]
    flags = [word for change in changes for word in ("--set", change)]
    done = run(environment, "launch", str(CONFIG), "--detach", "--json", *flags, timeout=500)
    assert done.returncode == 0, done.stderr
    launched = json.loads(done.stdout)
    assert launched["url"] == f"http://{slurm.address(slurm.nodes[0])}:8000"
    assert {(p["prefill"], p["decode"], p["ok"]) for p in launched["probe"]["pairs"]} == {
        ("prefill-0", "decode-0", True),
        ("prefill-0", "decode-1", True),
    }
    assert [one["first_wrong"] for one in launched["probe"]["parity"]] == [None, None]
    assert launched["eval"]["counts"]["error"] == launched["eval"]["counts"]["timeout"] == 0

    status = json.loads(run(environment, "status", "--json").stdout)
    hosts = {p["name"]: p["host"] for p in status["processes"]}
    assert [hosts[name] for name in ("prefill-0", "decode-0", "decode-1")] == list(slurm.nodes)

    stopped = run(environment, "stop", "--json")
    assert (stopped.returncode, json.loads(stopped.stdout)["exit_code"]) == (0, 0), stopped.stderr
    assert slurm.jobs() == {}
    assert slurm.processes() == []
