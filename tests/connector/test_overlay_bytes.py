"""The overlay on the installed SGLang's own slicing code: every byte right, and no more NIXL calls than stock makes."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(find_spec("sglang") is None, reason="sglang is not installed"),
]


@pytest.fixture(scope="module")
def seen():
    program = Path(__file__).with_name("overlay_bytes.py")

    def run(how):
        command = [sys.executable, str(program), how]
        done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout)

    return {how: run(how) for how in ("stock", "overlay")}


def test_stock_gets_some_plans_wrong(seen):
    wrong = {name for name, cell in seen["stock"].items() if cell["outcome"] != "ok"}
    assert {"2:4:1", "4:8:2", "pools 2:1+4:4"} <= wrong


def test_with_the_overlay_every_byte_is_right(seen):
    assert {name: cell for name, cell in seen["overlay"].items() if cell["outcome"] != "ok"} == {}


def test_it_costs_no_call_for_a_plan_that_stock_gets_right(seen):
    """Descriptor lists are prepared once for each peer, and each request is one prepared transfer, as in stock."""
    for name, cell in seen["stock"].items():
        if cell["outcome"] == "ok":
            assert seen["overlay"][name]["calls"] == cell["calls"], name


def test_a_repaired_plan_makes_one_transfer_for_each_peer(seen):
    calls = seen["overlay"]["2:4:1"]["calls"]
    assert (calls["make_prepped_xfer"], calls["transfer"]) == (4, 4)
    assert calls["prep_xfer_dlist"] == 4 + 2  # one list for each decode rank, one for each prefill rank's source
