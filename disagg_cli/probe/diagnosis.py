"""Why a pair did not move KV: one sentence with the cause, from what both sides left behind. "Unknown" is an answer.

Pure. What a log line means was read in SGLang 0.5.23 (`disaggregation/{nixl,common}/conn.py`, `decode.py`) and seen in
launches with the fault in question.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """What is left of a pair that failed. Sizes are attention TP; senders: how many completions decode waits for."""

    prefill_log: str
    decode_log: str
    prefill_done: bool
    prefill_tp: int
    decode_tp: int
    kv_heads: int
    senders: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """A cause, and what to do about it."""

    cause: str
    fix: str


UNKNOWN = Diagnosis(
    cause="unknown: neither side's log says why", fix="read both workers' logs from the first request on"
)


def diagnose(evidence: Evidence) -> Diagnosis:
    """The first sign that explains the failure, surest first."""
    for sign in (_bootstrap_thread, _nixl_error, _lost_peer, _unreachable, _waiting_for_senders):
        if found := sign(evidence):
            return found
    return UNKNOWN


def _bootstrap_thread(evidence: Evidence) -> Diagnosis | None:
    if "bootstrap_thread died" not in evidence.prefill_log:
        return None
    if evidence.kv_heads < evidence.prefill_tp < evidence.decode_tp:
        return Diagnosis(
            cause="prefill bootstrap thread died: class T < P < D "
            f"(TP{evidence.prefill_tp} -> TP{evidence.decode_tp}, {evidence.kv_heads} KV heads)",
            fix="use `connector: {overlay: auto}`, or equal attention TP on both sides",
        )
    error = _last(r"^(\w+(?:Error|Exception)\b.*)$", evidence.prefill_log) or "see its log"
    return Diagnosis(cause=f"prefill bootstrap thread died: {error}", fix="restart both sides once the cause is mended")


def _nixl_error(evidence: Evidence) -> Diagnosis | None:
    for side, log in (("prefill", evidence.prefill_log), ("decode", evidence.decode_log)):
        if name := _last(r"(NIXL_ERR_\w+)", log):
            return Diagnosis(cause=f"{side}: NIXL refused a transfer with {name}", fix=NIXL_FIXES.get(name, NIXL_FIX))
    return None


NIXL_FIX = "compare the NIXL and UCX versions of both sides, and UCX_TLS and UCX_NET_DEVICES"
NIXL_FIXES = {
    "NIXL_ERR_NOT_FOUND": "a descriptor lies outside registered memory: check the plan with `disagg plan`",
    "NIXL_ERR_INVALID_PARAM": "descriptor lists of different lengths: decode pools of different TP behind one prefill "
    "need `connector: {overlay: auto}`",
}


def _lost_peer(evidence: Evidence) -> Diagnosis | None:
    if "Lost connection with prefill instance" not in evidence.decode_log:
        return None
    return Diagnosis(
        cause="decode lost its connection with prefill: heartbeats failed",
        fix="see whether prefill's host is starved; SGLANG_DISAGGREGATION_HEARTBEAT_MAX_FAILURE gives it more time",
    )


def _unreachable(evidence: Evidence) -> Diagnosis | None:
    if not re.search(
        r"(Error fetching prefill|Could not fetch prefill|Failed to connect to prefill)", evidence.decode_log
    ):
        return None
    return Diagnosis(
        cause="decode cannot reach prefill's bootstrap server",
        fix="open prefill's bootstrap port to decode's host; it listens on prefill's --host",
    )


def _waiting_for_senders(evidence: Evidence) -> Diagnosis | None:
    """Prefill answers its own leg of a request only when all its ranks have sent everything."""
    if not evidence.prefill_done:
        return None
    count = f"{evidence.senders} different senders" if evidence.senders else "all senders"
    return Diagnosis(
        cause=f"prefill has sent everything, and decode still waits: it counts the completions of {count}, "
        "and some are lost or look alike",
        fix="use a release whose completion keys tell ranks apart: `disagg plan --releases`",
    )


def _last(pattern: str, text: str) -> str | None:
    found = re.findall(pattern, text, re.MULTILINE)
    return str(found[-1]).strip()[:200] if found else None
