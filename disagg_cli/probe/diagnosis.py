"""Why a pair did not move KV: one sentence with the cause, from what both sides left behind. "Unknown" is an answer.

Pure. What a log line means was read in SGLang 0.5.23 (`disaggregation/{nixl,common}/conn.py`, `decode.py`) and seen in
launches with the fault in question.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from disagg_cli.connector import overlay
from disagg_cli.connector.case import Case
from disagg_cli.connector.classes import class_of
from disagg_cli.kv.plan import SlicePlan
from disagg_cli.probe.parity import ParityResult


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """What is left of a pair that failed. Sizes are attention TP.

    prefill_new and decode_new: the part of each log that was written since the request was sent, None for all of it.
    address: of prefill's bootstrap server, as decode names it. room: of the request. timed_out: whether no answer came
    in time, rather than a refusal.
    expected: the senders that each decode rank waits for, empty where their keys are not known. heard: those that it
    heard from, repeats included, None where no witness listened (connector/witness). queues: what waits in the PD
    queues of both workers, where they tell.
    """

    prefill_log: str
    decode_log: str
    prefill_done: bool
    prefill_new: str | None = None
    decode_new: str | None = None
    address: str = ""
    room: int = 0
    timed_out: bool = True
    prefill_tp: int
    decode_tp: int
    kv_heads: int
    expected: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    heard: Mapping[int, tuple[int, ...]] | None = None
    queues: Mapping[str, float] = field(default_factory=dict)

    @property
    def fresh(self) -> tuple[tuple[str, str], tuple[str, str]]:
        """Prefill's and decode's logs since the request was sent, each with its side's name."""
        prefill = self.prefill_log if self.prefill_new is None else self.prefill_new
        return ("prefill", prefill), ("decode", self.decode_log if self.decode_new is None else self.decode_new)


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """A cause, and what to do about it. known: whether it is one, and not the word that there is none."""

    cause: str
    fix: str
    known: bool = True

    def document(self) -> dict[str, str]:
        """The diagnosis as JSON."""
        return {"cause": self.cause, "fix": self.fix}


READ_LOGS = "read both workers' logs from the first request on"


def diagnose(evidence: Evidence) -> Diagnosis:
    """The first sign that explains the failure, surest first: what names this request or peer, then what may not."""
    named = (_bootstrap_thread, _transfer_error, _lost_peer, _unreachable)
    late = (_witnessed_to_the_end, _nixl_error, _witnessed, _waiting_for_senders)
    for sign in (*named, *late) if evidence.timed_out else (*named, _nixl_error):
        if found := sign(evidence):
            return found
    silent = sorted(rank for rank in evidence.expected if evidence.heard is not None and not evidence.heard.get(rank))
    heard = f"; decode rank(s) {_ranks(silent)} heard from no sender" if silent and evidence.timed_out else ""
    room = f" (bootstrap room {evidence.room})" if evidence.room else ""
    cause = f"unknown: neither side's log says why{heard}{_waiting(evidence)}{room}"
    return Diagnosis(cause=cause, fix=READ_LOGS, known=False)


def _waiting(evidence: Evidence) -> str:
    queues = [f"{name} {count:.0f}" for name, count in evidence.queues.items() if count]
    return f" (still queued: {', '.join(queues)})" if queues else ""


def _bootstrap_thread(evidence: Evidence) -> Diagnosis | None:
    """A thread that has died stays dead, whenever that was."""
    if "bootstrap_thread died" not in evidence.prefill_log:
        return None
    stock = overlay.LOADED not in evidence.prefill_log
    if stock and evidence.kv_heads < evidence.prefill_tp < evidence.decode_tp:
        return Diagnosis(
            cause="prefill bootstrap thread died: class T < P < D "
            f"(TP{evidence.prefill_tp} -> TP{evidence.decode_tp}, {evidence.kv_heads} KV heads)",
            fix="use `connector: {overlay: auto}`, or equal attention TP on both sides",
        )
    error = _last(r"^(\w+(?:Error|Exception)\b.*)$", evidence.prefill_log) or "see its log"
    return Diagnosis(cause=f"prefill bootstrap thread died: {error}", fix="restart both sides once the cause is mended")


NO_REASONS = ("Failed due to an unknown reason", "Aborted by AbortReq")
"""The second is what decode says once the probe has given up: an effect, not a cause."""


def _transfer_error(evidence: Evidence) -> Diagnosis | None:
    """SGLang's own word on this very request (`KVTransferError.__str__`, disaggregation/common/conn.py)."""
    for side, log in (("prefill", evidence.prefill_log), ("decode", evidence.decode_log)):
        reason = _last(rf"KVTransferError\(bootstrap_room={evidence.room}\): (.*)$", log)
        if reason and not reason.startswith(NO_REASONS):
            return Diagnosis(cause=f"{side}: the transfer of room {evidence.room} failed: {reason}", fix=READ_LOGS)
    return None


def _nixl_error(evidence: Evidence) -> Diagnosis | None:
    for side, log in evidence.fresh:
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
    if f"Lost connection with prefill instance (bootstrap_addr: {evidence.address}" not in evidence.fresh[1][1]:
        return None
    return Diagnosis(
        cause="decode lost its connection with prefill: heartbeats failed",
        fix="see whether prefill's host is starved; SGLANG_DISAGGREGATION_HEARTBEAT_MAX_FAILURE gives it more time",
    )


def _unreachable(evidence: Evidence) -> Diagnosis | None:
    pattern = r"^.*(?:Error fetching prefill|Could not fetch prefill|Failed to connect to prefill).*$"
    lines = re.findall(pattern, evidence.fresh[1][1], re.MULTILINE)
    if not any(evidence.address in line or not re.search(r":\d{3,5}\b", line) for line in lines):
        return None
    return Diagnosis(
        cause="decode cannot reach prefill's bootstrap server",
        fix="open prefill's bootstrap port to decode's host; it listens on prefill's --host",
    )


def _witnessed_to_the_end(evidence: Evidence) -> Diagnosis | None:
    """The same where prefill has finished, so that nothing of its own can have failed."""
    return _witnessed(evidence) if evidence.prefill_done else None


def _witnessed(evidence: Evidence) -> Diagnosis | None:
    """What decode's own account says, against the senders that the plan expects.

    Where it heard from nobody, the senders may be at fault, or decode itself.
    """
    if not evidence.heard or not evidence.expected:
        return None
    for rank, expected in evidence.expected.items():
        heard = evidence.heard.get(rank, ())
        missing = sorted(set(expected) - set(heard))
        if missing and len(heard) >= len(expected):
            return Diagnosis(
                cause=f"decode rank {rank} heard {len(heard)} completions that look alike (from {_ranks(heard)}) and "
                f"waits for prefill rank(s) {_ranks(missing)}",
                fix=TELL_APART,
            )
        if missing and evidence.prefill_done:
            return Diagnosis(
                cause=f"prefill has sent everything, and decode rank {rank} has not heard so from prefill rank(s) "
                f"{_ranks(missing)}: their completions are lost",
                fix="see whether that rank's host reaches the port on which decode listens; " + READ_LOGS,
            )
        if missing:
            return Diagnosis(
                cause=f"prefill rank(s) {_ranks(missing)} have not finished sending to decode rank {rank}"
                + _waiting(evidence),
                fix=READ_LOGS,
            )
    return Diagnosis(
        cause=f"every decode rank heard from all its senders, and decode does not answer{_waiting(evidence)}",
        fix="the transfer is not what it waits for: read decode's log",
    )


TELL_APART = "use a release whose completion keys tell ranks apart: `disagg plan --releases`"


def _waiting_for_senders(evidence: Evidence) -> Diagnosis | None:
    """Prefill answers its own leg of a request only when all its ranks have sent everything."""
    if not evidence.prefill_done or evidence.heard is not None:
        return None
    senders = len(next(iter(evidence.expected.values()), ()))
    count = f"{senders} different senders" if senders else "all senders"
    return Diagnosis(
        cause=f"prefill has sent everything, and decode still waits: it counts the completions of {count}, "
        "and some are lost or look alike",
        fix=TELL_APART,
    )


def _ranks(ranks: Iterable[int]) -> str:
    return ", ".join(str(rank) for rank in sorted(set(ranks)))


def _last(pattern: str, text: str) -> str | None:
    found = re.findall(pattern, text, re.MULTILINE)
    return str(found[-1]).strip()[:200] if found else None


def suspect(parity: ParityResult, case: Case, plan: SlicePlan | None) -> Diagnosis:
    """What wrong KV looks like: which prompts it touches, held against what the plan moves between these two sizes."""
    if parity.wrong_prompts and min(parity.wrong_prompts) > min(parity.prompts):
        shortest = min(parity.wrong_prompts)
        return Diagnosis(
            cause=f"only prompts of {shortest} tokens and more are wrong: pages or chunks are lost or misplaced, heads "
            "are not",
            fix="compare page size and chunked prefill size of both sides",
        )
    known = class_of(case)
    name = f"class {known.letter} ({known.meaning})" if known else "no class of plans that disagg knows"
    if not case.sliced or plan is None:
        cause = f"every prompt is wrong, and {name} moves whole rows: a wrong page, layer or dtype rather than a head"
        return Diagnosis(cause=cause, fix="compare KV dtype, page size and layers of both sides")
    rank = plan.routes[0].decode_rank
    slices = "; ".join(
        f"heads {route.heads.first}-{route.heads.past_end - 1} from prefill rank {route.prefill_rank} "
        f"at {route.dst_head_offset}"
        for route in plan.routes
        if route.decode_rank == rank
    )
    return Diagnosis(
        cause=f"every prompt is wrong, the shortest too: suspect heads at the wrong place, as {name} cuts them. "
        f"Right would be, for decode rank {rank}: {slices}",
        fix="run `disagg connector verify` where the workers run: it holds their slicing code against the plan",
    )
