"""One sentence that says why a pair did not move KV."""

import pytest

from disagg_cli.connector.case import Case
from disagg_cli.kv.layout import KVLayout
from disagg_cli.kv.parallelism import Parallelism
from disagg_cli.kv.plan import plan_slices
from disagg_cli.probe.diagnosis import Evidence, diagnose, suspect
from disagg_cli.probe.parity import ParityResult

DIED = "AssertionError\n[TP0] prefill bootstrap_thread died on engine_rank=0; requests to this rank will time out"


def evidence(**changes):
    sizes = {"prefill_tp": 2, "decode_tp": 1, "kv_heads": 4, "expected": {0: (0, 1)}}
    return Evidence(**{"prefill_log": "", "decode_log": "", "prefill_done": False} | sizes | changes)


def test_nothing_to_go_by():
    found = diagnose(evidence())
    assert not found.known
    assert found.cause == "unknown: neither side's log says why"


def test_what_is_still_queued_is_said_also_where_the_cause_is_unknown():
    found = diagnose(evidence(queues={"prefill-0 inflight": 1.0, "decode-0 transfer": 1.0, "decode-0 prealloc": 0.0}))
    assert found.cause.endswith("(still queued: prefill-0 inflight 1, decode-0 transfer 1)")


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


LOST = "Lost connection with prefill instance (bootstrap_addr: 10.0.0.1:8998), 1 requests affected\n"


def test_heartbeats():
    assert "heartbeats" in diagnose(evidence(decode_log=LOST, address="10.0.0.1:8998")).cause


def test_another_prefills_heartbeats_explain_nothing():
    assert not diagnose(evidence(decode_log=LOST, address="10.0.0.2:8998")).known


def test_what_was_logged_before_the_request_explains_nothing():
    log = LOST + "NIXL_ERR_BACKEND\nError fetching prefill info\n"
    assert diagnose(evidence(decode_log=log)).known
    assert not diagnose(evidence(decode_log=log, decode_new="")).known


def test_a_thread_that_died_before_the_request_explains_it():
    assert diagnose(evidence(prefill_log=DIED, prefill_new="")).known


def witnessed(*heard, **changes):
    return diagnose(evidence(heard={0: heard} if heard else {}, **changes)).cause


def test_completions_that_look_alike_are_told_from_lost_ones():
    assert witnessed(0, 0, prefill_done=True) == (
        "decode rank 0 heard 2 completions that look alike (from 0) and waits for prefill rank(s) 1"
    )
    assert "has not heard so from prefill rank(s) 1: their completions are lost" in witnessed(0, prefill_done=True)


def test_a_sender_that_has_not_finished():
    assert witnessed(1) == "prefill rank(s) 0 have not finished sending to decode rank 0"
    assert witnessed(1, queues={"prefill-0 inflight": 1.0}).endswith("(still queued: prefill-0 inflight 1)")


def test_a_decode_that_heard_from_nobody_may_be_at_fault_itself():
    """Seen with a decode scheduler that was stopped: prefill's ranks had nobody to send to."""
    found = diagnose(evidence(heard={}, queues={"prefill-0 bootstrap": 1.0}))
    assert not found.known
    assert "decode rank(s) 0 heard from no sender (still queued: prefill-0 bootstrap 1)" in found.cause
    assert not diagnose(evidence(heard={}, prefill_done=True)).known


def test_what_decode_heard_outweighs_lines_that_may_be_about_another_pair():
    lost = {"heard": {0: (0,)}, "prefill_done": True, "address": "10.0.0.1:8998"}
    other = "[2026-11-30 10:12:25] Could not fetch prefill parallel info from 10.0.0.2:8998\n"
    assert "prefill rank(s) 1: their completions are lost" in diagnose(evidence(decode_log=other, **lost)).cause
    assert "lost" in diagnose(evidence(prefill_log="NIXL_ERR_BACKEND", **lost)).cause
    assert "cannot reach" in diagnose(evidence(decode_log=other.replace("0.2:", "0.1:"), **lost)).cause
    unfinished = lost | {"prefill_done": False}
    assert "NIXL refused" in diagnose(evidence(prefill_log="NIXL_ERR_BACKEND", **unfinished)).cause


def test_all_were_heard():
    assert witnessed(0, 1) == "every decode rank heard from all its senders, and decode does not answer"


def parity(*wrong):
    return ParityResult(prefill="p", decode="d", tolerance=0.005, prompts=(15, 56, 517), wrong_prompts=wrong)


def suspected(p, d, t, *wrong):
    plan = plan_slices(
        KVLayout(name="m", total_kv_heads=t, num_layers=1, head_dim=1), Parallelism(tp=p), Parallelism(tp=d)
    )
    return suspect(parity(*wrong), Case(prefill_tp=p, decode_tp=d, kv_heads=t), plan).cause


def test_heads_at_the_wrong_place_name_the_class_and_the_right_place():
    assert suspected(2, 1, 4, 15, 56, 517) == (
        "every prompt is wrong, the shortest too: suspect heads at the wrong place, as class B (P > D = 1, T >= P) "
        "cuts them. Right would be, for decode rank 0: heads 0-1 from prefill rank 0 at 0; heads 2-3 from prefill "
        "rank 1 at 2"
    )


def test_equal_sizes_cut_no_heads():
    assert "class A (P = D) moves whole rows" in suspected(2, 2, 4, 15, 56, 517)


def test_only_long_prompts_point_to_pages_not_heads():
    assert suspected(2, 1, 4, 56, 517).startswith("only prompts of 56 tokens and more are wrong: pages")


def test_a_refusal_is_no_missing_sender():
    assert not diagnose(evidence(heard={}, timed_out=False)).known
    assert not diagnose(evidence(prefill_done=True, timed_out=False)).known


def test_sglangs_own_word_on_this_request():
    log = "Decode transfer failed: KVTransferError(bootstrap_room=7): Failed to get kvcache from prefill instance"
    assert diagnose(evidence(decode_log=log, room=7)).cause == (
        "decode: the transfer of room 7 failed: Failed to get kvcache from prefill instance"
    )
    assert not diagnose(evidence(decode_log=log, room=8)).known


def test_that_the_probe_gave_up_is_no_cause():
    log = "Decode transfer failed: KVTransferError(bootstrap_room=7): Aborted by AbortReq."
    assert "lost or look alike" in diagnose(evidence(decode_log=log, room=7, prefill_done=True)).cause


def test_with_the_overlay_loaded_the_class_is_not_to_blame():
    log = f"disagg overlay: loaded: all\n{DIED}"
    found = diagnose(evidence(prefill_log=log, prefill_tp=2, decode_tp=4, kv_heads=1))
    assert found.cause == "prefill bootstrap thread died: AssertionError"
