"""The overlay on real SGLang 0.5.23: what stock gets wrong hangs, and with the overlay serves the right tokens."""

import signal
import time

import pytest
from aggregated import aggregated
from launched import Launched, answers, run, write_topology

from disagg_cli.topology.synthetic import SyntheticModel

CLASS_H = {
    "name": "class-h",
    "model": {"synthetic": {"kv_heads": 1}},
    "prefill": {"tp": 2},
    "decode": {"tp": 4},
}
MIXED_POOLS = {"name": "mixed-pools", "prefill": {"tp": 2}, "decode": [{"tp": 1}, {"tp": 4}]}


def test_stock_is_refused_before_it_is_launched(environment, tmp_path):
    config = write_topology(tmp_path, **CLASS_H, connector={"overlay": "off"})
    begun = time.monotonic()
    refused = run(environment, "launch", str(config))
    assert refused.returncode == 3
    assert "DSG121" in refused.stderr
    assert time.monotonic() - begun < 10  # about a second on free cores


def test_stock_hangs_and_the_pair_is_named_with_its_cause(environment, tmp_path):
    config = write_topology(tmp_path, **CLASS_H, connector={"overlay": "off"}, probe={"timeout_s": 20})
    forced = run(environment, "launch", str(config), "--force")
    assert forced.returncode == 5
    for part in (
        "prefill-0 -> decode-0: no answer within 20 s",
        "likely cause: DSG",
        "prefill bootstrap thread died: class T < P < D",
        "prefill-0, last lines",
        "decode-0, last lines",
    ):
        assert part in forced.stderr
    assert "--force overrides DSG115" in forced.stdout


@pytest.mark.parametrize(("changes", "kv_heads"), [(CLASS_H, 1), (MIXED_POOLS, 4)], ids=["class-h", "mixed-pools"])
def test_with_the_overlay_it_serves_the_right_tokens(
    environment, warm_parent, tmp_path, interrupt_all, changes, kv_heads
):
    one = Launched(environment, tmp_path, write_topology(tmp_path, **changes))
    interrupt_all.append(one)
    one.wait_for("serving", timeout=200)
    assert "disagg overlay: loaded" in one.output.read_text()
    with aggregated(warm_parent, tmp_path, SyntheticModel(kv_heads=kv_heads), tp=1, port=21700 + kv_heads) as truth:
        expected = answers(truth)
    assert answers(one.state["url"]) == expected
    assert answers(one.state["url"]) == expected  # round robin: the other decode pool, where there is one
    assert one.finish(60, signal.SIGINT)[0] == 0
