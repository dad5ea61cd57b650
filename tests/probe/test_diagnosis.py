"""One sentence that says why a pair did not move KV."""

import pytest

from disagg_cli.probe.diagnosis import UNKNOWN, Evidence, diagnose

DIED = "AssertionError\n[TP0] prefill bootstrap_thread died on engine_rank=0; requests to this rank will time out"


def evidence(**changes):
    sizes = {"prefill_tp": 2, "decode_tp": 1, "kv_heads": 4, "senders": 2}
    return Evidence(**{"prefill_log": "", "decode_log": "", "prefill_done": False} | sizes | changes)


def test_nothing_to_go_by():
    assert diagnose(evidence()) == UNKNOWN


def test_replicated_on_both_sides():
    found = diagnose(evidence(prefill_log=DIED, prefill_tp=2, decode_tp=4, kv_heads=1))
    assert found.cause == "prefill bootstrap thread died: class T < P < D (TP2 -> TP4, 1 KV heads)"
    assert "overlay" in found.fix


def test_bootstrap_thread_died_of_something_else():
    found = diagnose(evidence(prefill_log=DIED.replace("AssertionError", "RuntimeError: no such device")))
    assert found.cause == "prefill bootstrap thread died: RuntimeError: no such device"


@pytest.mark.parametrize("side", ["prefill", "decode"])
def test_nixl_error(side):
    found = diagnose(evidence(**{f"{side}_log": "nixlInvalidParamError: NIXL_ERR_INVALID_PARAM"}))
    assert found.cause == f"{side}: NIXL refused a transfer with NIXL_ERR_INVALID_PARAM"
    assert "pools of different TP" in found.fix


def test_completions_that_look_alike():
    assert "completions of 2 different senders" in diagnose(evidence(prefill_done=True)).cause


def test_a_log_that_explains_comes_before_a_guess():
    assert "NIXL" in diagnose(evidence(prefill_done=True, decode_log="NIXL_ERR_BACKEND")).cause


def test_heartbeats():
    assert "heartbeats" in diagnose(evidence(decode_log="Lost connection with prefill instance (addr: x)")).cause
