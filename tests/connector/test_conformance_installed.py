"""The installed SGLang's own connector, stock and with the overlay, plan by plan, against what disagg says of it."""

import json
import subprocess
import sys
from importlib.util import find_spec

import pytest

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(find_spec("sglang") is None, reason="sglang is not installed"),
]


def verify(*args):
    command = [sys.executable, "-m", "disagg_cli", "connector", "verify", "--json", *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=290, check=False)
    assert done.stdout, done.stderr[-2000:]
    return done.returncode, json.loads(done.stdout)


@pytest.fixture(scope="module")
def grids():
    return {"stock": verify(), "overlay": verify("--overlay")}


def cells(grid):
    """Plans of one stage whose K and V heads are of one size, by their sizes."""
    _, document = grid
    plain = [cell for cell in document["cells"] if cell["layout"] in ("mha", "mha, mixed pools")]
    return {
        (cell["prefill_tp"], *cell["decode_tp"], cell["kv_heads"]): cell for cell in plain if cell["prefill_pp"] == 1
    }


@pytest.mark.parametrize("how", ["stock", "overlay"])
def test_the_whole_grid_agrees(grids, how):
    code, document = grids[how]
    assert [cell for cell in document["cells"] if not cell["agrees"]] == []
    assert (code, document["ok"], document["agree"]) == (0, True, document["total"])


def test_stock_gets_some_plans_wrong(grids):
    wrong = {sizes for sizes, cell in cells(grids["stock"]).items() if cell["observed"] != "ok"}
    assert {(2, 4, 1), (4, 8, 2), (2, 1, 4, 4)} <= wrong


def test_with_the_overlay_every_byte_is_right_and_every_sender_is_waited_for(grids):
    assert {sizes: cell for sizes, cell in cells(grids["overlay"]).items() if cell["observed"] != "ok"} == {}


def test_it_costs_no_call_for_a_plan_that_stock_gets_right(grids):
    """Descriptor lists are prepared once for each peer, and each request is one prepared transfer, as in stock."""
    overlaid = cells(grids["overlay"])
    for sizes, cell in cells(grids["stock"]).items():
        if cell["observed"] == "ok":
            assert overlaid[sizes]["agent_calls"] == cell["agent_calls"], sizes


def test_a_repaired_plan_makes_one_transfer_of_kv_for_each_peer(grids):
    calls = cells(grids["overlay"])[2, 4, 1]["agent_calls"]
    assert calls["make_prepped_xfer"] == 4
    assert calls["prep_xfer_dlist"] == 4 + 2  # one list for each decode rank, one for each prefill rank's source


def test_one_plan_that_the_installed_connector_gets_wrong_exits_3_and_with_the_overlay_0():
    plan = ("--prefill-tp", "4", "--decode-tp", "8", "--kv-heads", "2")
    code, document = verify(*plan)
    assert (code, document["ok"]) == (3, False)
    assert document["cells"][0]["observed"] == document["cells"][0]["expected"] != "ok"
    code, document = verify(*plan, "--overlay")
    assert (code, document["cells"][0]["observed"]) == (0, "ok")
