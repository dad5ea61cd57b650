"""A run in somebody's allocation whose disagg is killed: Slurm ends nothing there, so `disagg stop` has to."""

import json
import os
import subprocess
import sys

import yaml
from cheap_python import cheap_python
from deployments import SMALLEST
from waiting import wait_until

DISAGG = [sys.executable, "-m", "disagg_cli"]


def test_steps_of_a_killed_disagg_are_found_and_ended(held, home, tmp_path):
    topology = SMALLEST | {
        "executor": {"slurm": {"nodes": 3, "python": str(cheap_python(tmp_path))}},
        "ports": 22000,
        "router": {"port": 22500},
        "probe": {"parity": False, "timeout_s": 20},
    }
    (tmp_path / "t.yaml").write_text(yaml.safe_dump(topology))
    with (tmp_path / "out").open("wb") as out:
        launch = subprocess.Popen([*DISAGG, "launch", str(tmp_path / "t.yaml")], stdout=out, stderr=out)
    wait_until(lambda: "router  http://" in (tmp_path / "out").read_text(), 60)
    launch.kill()
    launch.wait(10)
    assert len(steps(held)) == 4

    other = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_JOB")}
    done = subprocess.run([*DISAGG, "stop", "--json"], env=other, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)["leftovers"]) == {"prefill-0", "decode-0", "decode-1", "router"}
    assert steps(held) == []
    assert held.jobs()[os.environ["SLURM_JOB_ID"]] == "RUNNING"


def steps(lab):
    return lab.run("squeue", "-h", "-s", "-o", "%j").split()
