"""What an SGLang release's NIXL connector does with a pair of attention TP sizes.

The outcome follows from the release's mechanisms (releases.yaml), tried in the order in which a request meets
them: rank mapping, registration of the decode peer, the send of KV and of state, the count of finished
senders, the bytes. Tests hold it against a table of outcomes obtained by executing the releases' own code.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from disagg_cli.connector import head_maths, reasons
from disagg_cli.connector.case import Case, Outcome
from disagg_cli.connector.releases import Connector, Release, known_releases
from disagg_cli.kv import heads
from disagg_cli.kv.layout import LayoutKind


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What happens, and why.

    `minimum_release` is the first release from which on every known one is right; None where there is none.
    """

    outcome: Outcome
    reason: str
    minimum_release: str | None = None

    @property
    def ok(self) -> bool:
        """Whether KV arrives, complete and right."""
        return self.outcome is Outcome.OK


_Ruling = tuple[Outcome, str]
_Check = Callable[[Connector, Case], _Ruling | None]


def judge(
    release: Release,
    prefill_tp: int,
    decode_tp: int,
    kv_heads: int,
    *,
    pp: int = 1,
    decode_pp: int = 1,
    kind: LayoutKind = LayoutKind.MHA,
) -> Verdict:
    """Judge one prefill/decode pair on one release.

    Sizes are attention TP; `kv_heads` counts before replication; `pp` is the prefill's.
    """
    case = Case(prefill_tp=prefill_tp, decode_tp=decode_tp, kv_heads=kv_heads, pp=pp, decode_pp=decode_pp, kind=kind)
    return judge_case(release, case)


def judge_case(release: Release, case: Case) -> Verdict:
    """Judge one case on one release."""
    return _verdict(release, lambda connector: _rule(connector, case), reasons.right())


def judge_releases(case: Case) -> dict[str, Verdict]:
    """Judge one case on every known release, oldest first."""
    rulings = {release.name: _rule(release.connector, case) for release in known_releases()}
    minimum = _minimum([(name, ruling is None) for name, ruling in rulings.items()])
    return {
        name: Verdict(
            outcome=ruling[0] if ruling else Outcome.OK,
            reason=ruling[1] if ruling else reasons.right(),
            minimum_release=minimum,
        )
        for name, ruling in rulings.items()
    }


def wrong_decode_ranks(release: Release, case: Case) -> tuple[int, ...]:
    """The decode ranks that get wrong bytes; none where the outcome is another one."""
    if judge_case(release, case).outcome is not Outcome.WRONG_BYTES:
        return ()
    if case.asymmetric or not _sliced_bytes(release.connector, case):
        return tuple(range(case.decode_tp))
    spread = case.prefill_tp < case.decode_tp
    return (head_maths.misled_by_modulo if spread else head_maths.misled_by_offset)(*case.size)


def counts_all_senders(connector: Connector, case: Case) -> bool:
    """Whether a decode rank's count of finished senders can reach what it waits for."""
    return _completion(connector, case) is None


def judge_pools(
    release: Release,
    prefill_tp: int,
    decode_tps: Sequence[int],
    kv_heads: int,
    *,
    kind: LayoutKind = LayoutKind.MHA,
    latent: bool = False,
) -> Verdict:
    """Judge decode pools of different sizes behind one prefill worker, apart from each pair's own verdict.

    From 0.5.13 on, a prefill rank prepares its source descriptors once, for the first decode peer that needs
    slices, and uses them for all (`prep_handle_slice_src`).
    """
    cases = [
        Case(prefill_tp=prefill_tp, decode_tp=tp, kv_heads=kv_heads, kind=kind, latent=latent) for tp in decode_tps
    ]
    return _verdict(release, lambda connector: _mix(connector, cases), reasons.pools_share_a_cut())


def _verdict(release: Release, ruling_of: Callable[[Connector], _Ruling | None], right: str) -> Verdict:
    """Rule for one release, and find the first from which on all are right."""
    outcome, reason = ruling_of(release.connector) or (Outcome.OK, right)
    minimum = _minimum([(known.name, ruling_of(known.connector) is None) for known in known_releases()])
    return Verdict(outcome=outcome, reason=reason, minimum_release=minimum)


def _minimum(oldest_first: Sequence[tuple[str, bool]]) -> str | None:
    """The first release from which on every one is right."""
    minimum = None
    for name, right in reversed(oldest_first):
        if not right:
            break
        minimum = name
    return minimum


def _rule(connector: Connector, case: Case) -> _Ruling | None:
    """The first thing that goes wrong; None where nothing does."""
    rulings = (check(connector, case) for check in _CHECKS)
    return next((ruling for ruling in rulings if ruling), None)


def _rank_mapping(connector: Connector, case: Case) -> _Ruling | None:
    if not heads.aligned(case.prefill_tp, case.decode_tp):
        return Outcome.UNSUPPORTED, reasons.unaligned(case)
    for tp in (case.prefill_tp, case.decode_tp):
        if not case.whole and not heads.loadable(case.kv_heads, tp):
            return Outcome.UNSUPPORTED, reasons.unloadable(case, tp)
    if case.decode_pp not in (1, case.pp):
        return Outcome.UNSUPPORTED, reasons.decode_pipeline(case)
    paired = not case.uneven and case.pp == 1 and sum(case.stage_layers) % 2 == 0
    if case.latent and case.kind is LayoutKind.HYBRID and not paired and connector.latent_hybrids == "unknown":
        return Outcome.UNSUPPORTED, reasons.latent_hybrid_unknown()
    if case.components > 1 and connector.components == "unknown":
        return Outcome.UNSUPPORTED, reasons.components_unknown()
    return None


def _registration(connector: Connector, case: Case) -> _Ruling | None:
    """Prepare descriptor lists for the decode peer (0.5.13 and later)."""
    if connector.descriptors != "prepared" or not case.sliced:
        return None
    if case.asymmetric:
        return Outcome.NOT_FOUND, reasons.cut_as_equal()
    if case.prefill_tp > case.decode_tp:
        return None
    groups = head_maths.head_groups(*case.size, replicated_decode=connector.replicated_decode)
    if groups == 0:
        return Outcome(connector.zero_groups), reasons.no_group(case)
    held = heads.heads_per_rank(case.kv_heads, case.prefill_tp)
    if groups * head_maths.heads_per_descriptor(*case.size) > held:
        return Outcome.NOT_FOUND, reasons.past_memory(case, groups)
    return None


def _stage_registration(connector: Connector, case: Case) -> _Ruling | None:
    """Pair the layers of several prefill stages with those of a decode of one stage (0.5.17 and later)."""
    if case.stages == 1 or connector.stage_pairing not in ("ids", "ids_or_span"):
        return None
    named = case.kind is LayoutKind.HYBRID
    if case.sliced:
        lost = named and connector.hybrid_offset == "all"
        return (Outcome.EMPTY_TRANSFER, reasons.stage_past_list()) if lost else None
    if named or (case.whole and case.components < 2 and connector.stage_pairing == "ids_or_span"):
        return None
    return Outcome.RUNTIME_ERROR, reasons.stages_unpaired(case)


def _kv_send(connector: Connector, case: Case) -> _Ruling | None:
    """Cut the heads of each request, and look up the places of its layers."""
    if case.sliced and connector.head_maths == "per_rank" and head_maths.divides_by_zero(*case.size):
        return Outcome.ZERO_DIVISION, reasons.division(case)
    if case.decode_pp > 1 and not connector.decode_stages and case.kind is not LayoutKind.SWA:
        return Outcome.RUNTIME_ERROR, reasons.decode_stage_past_list()
    if case.kind is LayoutKind.HYBRID and case.stages > 1 and connector.stage_pairing in ("offset", "first"):
        return Outcome.RUNTIME_ERROR, reasons.stage_past_pool()
    return None


def _state_send(connector: Connector, case: Case) -> _Ruling | None:
    """Send sliding-window or Mamba state."""
    if case.kind not in (LayoutKind.SWA, LayoutKind.HYBRID) or not (case.uneven and connector.state_sent):
        return None
    swa = case.kind is LayoutKind.SWA
    name = "sliding-window KV" if swa else "Mamba state"
    if (connector.swa_slices if swa else connector.mamba_slices) == "refused":
        return Outcome.RUNTIME_ERROR, reasons.state_refused(name, "for different TP sizes")
    if swa and case.pp > 1:
        return Outcome.RUNTIME_ERROR, reasons.state_refused(name, "where prefill has pipeline stages")
    if swa and case.window_heads and not head_maths.window_splits(*case.size, case.window_heads):
        return Outcome.RUNTIME_ERROR, reasons.state_refused(name, "with heads that spread otherwise than the rest")
    return None


def _completion(connector: Connector, case: Case) -> _Ruling | None:
    """Count the senders that have finished, as a decode rank does."""
    if not case.has_state and not connector.dense_finishes:
        return Outcome.HANG, reasons.dense_hangs()
    keys = {"KV": connector.kv_key} | ({"state": connector.state_key} if case.has_state else {})
    for what, key in keys.items():
        told_apart = {"pp_rank": case.stages, "engine_rank": case.tp_senders}.get(key, case.senders)
        if told_apart < case.senders:
            return Outcome.HANG, reasons.keys_collide(case, what, key, told_apart)
    return None


def _bytes(connector: Connector, case: Case) -> _Ruling | None:
    """Compare the heads that arrive with those that belong there."""
    if case.has_state and not connector.state_sent:
        return Outcome.WRONG_BYTES, reasons.state_not_sent()
    if case.asymmetric and connector.descriptors == "per_request":
        return Outcome.WRONG_BYTES, reasons.sent_as_equal()
    return _sliced_bytes(connector, case) or _stage_bytes(connector, case) or _state_bytes(connector, case)


def _sliced_bytes(connector: Connector, case: Case) -> _Ruling | None:
    """Where heads are cut: whether each arrives in its place."""
    if not case.sliced:
        return None
    gathered = case.prefill_tp > case.decode_tp
    if gathered and connector.head_maths == "per_rank" and not head_maths.gathers_right(*case.size):
        return Outcome.WRONG_BYTES, reasons.misplaced(case)
    if not gathered and connector.head_maths == "total" and connector.descriptors == "per_request":
        misled = head_maths.misled_by_modulo(*case.size)
        if misled:
            return Outcome.WRONG_BYTES, reasons.wrong_head(case, misled)
    return None


def _stage_bytes(connector: Connector, case: Case) -> _Ruling | None:
    """Where prefill stages meet a decode of one stage: whether their layers find their places."""
    if case.stages == 1:
        return None
    by_offset = connector.stage_pairing == "offset"
    if by_offset and case.kind is LayoutKind.SWA:
        return Outcome.WRONG_BYTES, reasons.stage_offset(case)
    if (case.sliced or (by_offset and not case.whole)) and case.ragged and connector.ragged_stages == "wrong":
        return Outcome.WRONG_BYTES, reasons.ragged(case)
    return None


def _state_bytes(connector: Connector, case: Case) -> _Ruling | None:
    """Where linear-attention state is cut: whether its parts are cut apart."""
    if case.kind is not LayoutKind.HYBRID or not case.uneven:
        return None
    if connector.mamba_slices == "one_block":
        return Outcome.WRONG_BYTES, reasons.conv_state()
    return (Outcome.WRONG_BYTES, reasons.conv_state_undeclared()) if case.cut_whole else None


def _early(connector: Connector, case: Case) -> _Ruling | None:
    """Finish after the first sender (0.5.6), or after the first kind of state."""
    if connector.kv_key == "none" and case.senders > 1:
        return Outcome.EARLY_DONE, reasons.early(case)
    if case.components > 1 and connector.components == "first":
        return Outcome.EARLY_DONE, reasons.early_component(case)
    return None


_CHECKS: tuple[_Check, ...] = (
    _rank_mapping,
    _registration,
    _stage_registration,
    _kv_send,
    _state_send,
    _completion,
    _bytes,
    _early,
)


def _mix(connector: Connector, cases: Sequence[Case]) -> _Ruling | None:
    """Whether pools that need slices need them cut in different ways."""
    if connector.descriptors != "prepared":
        return None
    sliced = [case for case in cases if case.sliced and not _rank_mapping(connector, case)]
    cuts = {_cut(connector, case) for case in sliced}
    if len(cuts) < 2:
        return None
    if len({heads_each for _, heads_each in cuts}) == 1:
        return Outcome.WRONG_BYTES, reasons.pools_take_the_first_cut([case.decode_tp for case in sliced])
    return Outcome.RUNTIME_ERROR, reasons.pools_need_cuts([case.decode_tp for case in sliced])


def _cut(connector: Connector, case: Case) -> tuple[int, int]:
    """How the shared source list is cut for a decode pool: groups per token, heads per descriptor."""
    groups = head_maths.head_groups(*case.size, replicated_decode=connector.replicated_decode)
    return groups, head_maths.heads_per_descriptor(*case.size)
