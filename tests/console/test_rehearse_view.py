"""What `disagg rehearse` shows in the end."""

import pytest
from rich.console import Console

from disagg_cli.console.rehearse_view import last_rehearsal_line, report_view

PAIR = {"prefill": "prefill-0", "decode": "decode-0", "ok": True, "first_token_s": 1.25, "error": None}
PARITY = {
    "prefill": "prefill-0",
    "decode": "decode-0",
    "ok": True,
    "error": None,
    "prompts": [15, 56],
    "max_difference": 1e-05,
    "mean_difference": 1e-06,
    "tolerance": 0.005,
    "first_wrong": None,
    "wrong_prompts": [],
    "fastest_s": 0.5,
    "alone_s": 0.0,
    "uncrossed_chunk": None,
    "timed_out": False,
}
WRONG = PARITY | {"ok": False, "first_wrong": 1}
NOTES = [
    {"kind": "as written", "what": "1 x prefill TP4", "why": ""},
    {"kind": "reduced", "what": "layers 64 -> 2", "why": "the model is small"},
    {"kind": "not covered", "what": "GPU kernels", "why": ""},
]
REPORT = {
    "ok": True,
    "reason": "every answer the same",
    "seconds": 61.2,
    "run": "rehearse-x-1",
    "fault": None,
    "notes": NOTES,
    "agreement": {"questions": 20, "answered": 20, "identical": 20},
    "probe": {"pairs": [PAIR], "parity": [PARITY]},
}


def shown(**changes):
    console = Console(width=120, color_system=None)
    with console.capture() as text:
        console.print(report_view(REPORT | changes))
    return text.get()


def test_what_passed_and_what_was_not_covered():
    text = shown()
    assert "ok  prefill-0 -> decode-0  1.25 s       1e-05 nats (tolerance 0.005)" in text
    assert "reduced      layers 64 -> 2: the model is small" in text
    assert "not covered  GPU kernels" in text
    assert "20 of 20 answers are those of an aggregated server" in text
    assert "REHEARSED  every answer the same, 61 s in all (rehearse-x-1)" in text


@pytest.mark.parametrize(
    ("probe", "said"),
    [
        ({"pairs": [PAIR | {"ok": False, "error": "no answer within 15 s", "first_token_s": None}]}, "no answer"),
        ({"pairs": [PAIR]}, "not compared"),
        ({"pairs": [PAIR], "parity": [WRONG | {"max_difference": 9.0}]}, "KV WRONG from token 1 on, differences of 9"),
        ({"pairs": [PAIR], "parity": [WRONG | {"max_difference": None}]}, "differences that are no numbers"),
        (
            {"pairs": [PAIR], "parity": [PARITY | {"ok": False, "fastest_s": 15.5}]},
            "KV LATE: the fastest answer took 15.5",
        ),
        ({"pairs": [PAIR], "parity": [PARITY | {"ok": False, "error": "timed out"}]}, "timed out"),
    ],
)
def test_a_pair_that_failed(probe, said):
    text = shown(ok=False, reason="it is wrong", agreement=None, probe=probe)
    assert "FAILED  prefill-0 -> decode-0" in text
    assert said in text
    assert "FAILED  it is wrong" in text


def test_a_planted_fault_is_named():
    assert "swap-heads: this rehearsal must fail" in shown(fault="swap-heads")


def test_nothing_was_proven():
    assert "FAILED  prefill-0 died" in shown(ok=False, reason="prefill-0 died", probe={}, agreement=None)


def test_no_rehearsal():
    assert last_rehearsal_line(None).plain.startswith("never rehearsed here as it is now")
