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
CAUSE = {
    "swap-heads": "suspect heads at the wrong place, as class B",
    "drop-page": "pages or chunks are lost or misplaced, heads are not",
    "same-key": "look alike (from 0) and waits for prefill rank(s) 1",
    "lose-completion": "has not heard so from prefill rank(s) 1: their completions are lost",
}


@pytest.mark.timeout(900)
def test_every_drill(environment, tmp_path):
    config = write_topology(tmp_path, decode={"workers": 1, "tp": 1})
    done = run(environment, "drill", str(config), "--timeout", "30", "--json", timeout=800)
    drills = json.loads(done.stdout)["drills"]
    assert {one["fault"]: one["expected"] for one in drills} == EXPECTED
    assert done.returncode == 0, done.stderr
    assert all(one["ok"] for one in drills)
    causes = {one["fault"]: one["cause"] for one in drills}
    assert not causes["none"]
    assert [fault for fault, said in CAUSE.items() if said not in causes[fault]] == []
