"""Each planted fault is found by the proof of readiness, and a healthy deployment is not suspected."""

import json

import pytest
from launched import run, write_topology

EXPECTED = {
    "none": "proven",
    "swap-heads": "wrong",
    "shift-rank": "wrong",
    "drop-page": "wrong",
    "same-key": "hang",
    "lose-completion": "hang",
    "delay-completion": "late",
}


@pytest.mark.timeout(900)
def test_every_drill(environment, tmp_path):
    config = write_topology(tmp_path, decode={"workers": 1, "tp": 1})
    done = run(environment, "drill", str(config), "--timeout", "20", "--json", timeout=800)
    drills = json.loads(done.stdout)["drills"]
    assert {one["fault"]: one["expected"] for one in drills} == EXPECTED
    assert done.returncode == 0, done.stderr
    assert all(one["ok"] for one in drills)
