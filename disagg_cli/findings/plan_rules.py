"""Rules about the head-slice plan and what the connector does with it. One function per rule.

A rule takes what was judged about one decode pool (or the whole deployment) and yields its findings.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from disagg_cli.connector.case import Case, Outcome
from disagg_cli.connector.releases import Choice
from disagg_cli.connector.repairs import FIRST_WITH_PLUGINS, loads
from disagg_cli.connector.verdict import Verdict
from disagg_cli.findings.finding import Finding, finding
from disagg_cli.kv import heads
from disagg_cli.kv.layout import KVLayout, LayoutKind
from disagg_cli.kv.parallelism import Parallelism
from disagg_cli.kv.plan import SlicePlan
from disagg_cli.kv.request import Request
from disagg_cli.kv.traffic import Traffic, find_link

_CODES: Mapping[Outcome, str] = MappingProxyType(
    {
        Outcome.HANG: "DSG111",
        Outcome.WRONG_BYTES: "DSG112",
        Outcome.EARLY_DONE: "DSG113",
        Outcome.ZERO_DIVISION: "DSG114",
        Outcome.NOT_FOUND: "DSG115",
        Outcome.EMPTY_TRANSFER: "DSG115",
        Outcome.ASSERTION: "DSG115",
        Outcome.RUNTIME_ERROR: "DSG116",
    }
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """What the rules look at: one prefill/decode pair, its plan and its verdict. `where` names the decode pool."""

    layout: KVLayout
    prefill: Parallelism
    decode: Parallelism
    plan: SlicePlan | None
    verdict: Verdict
    choice: Choice
    case: Case
    traffic: Traffic | None = None
    request: Request = field(default_factory=Request)
    where: str = "decode"

    @property
    def sides(self) -> Mapping[str, Parallelism]:
        """Both sides, by where they are written."""
        return {"prefill": self.prefill, self.where: self.decode}


def judge_plan(judged: Judged) -> tuple[Finding, ...]:
    """All findings about one prefill/decode pair."""
    return tuple(found for rule in RULES for found in rule(judged))


def tp_not_multiple(judged: Judged) -> Iterator[Finding]:
    """DSG101: neither attention TP is a multiple of the other."""
    p, d = judged.prefill.attention_tp, judged.decode.attention_tp
    if not heads.aligned(p, d):
        message = f"prefill attention TP {p} and decode attention TP {d}: neither is a multiple of the other"
        yield finding("DSG101", message, where=f"{judged.where}.tp")


def heads_not_loadable(judged: Judged) -> Iterator[Finding]:
    """DSG102: the model's heads do not spread evenly over a side's ranks."""
    for where, side in judged.sides.items():
        what = _does_not_load(judged.layout, side.attention_tp)
        if what:
            message = f"{what} do not spread evenly over attention TP {side.attention_tp}"
            yield finding("DSG102", message, where=f"{where}.tp")


def _does_not_load(layout: KVLayout, tp: int) -> str | None:
    """The first of a model's counts that does not go with an attention TP."""
    if not heads.loadable(layout.total_kv_heads, tp):
        return f"{layout.total_kv_heads} KV heads"
    if layout.window and not heads.loadable(layout.window.kv_heads, tp):
        return f"{layout.window.kv_heads} KV heads of sliding-window layers"
    if layout.state and not layout.state.loadable(tp):
        counts = ", ".join(str(count) for count in layout.state.heads)
        return f"linear-attention heads ({counts}; replicating them is not modelled)"
    if layout.attention_heads and layout.attention_heads % tp:
        return f"{layout.attention_heads} attention heads"
    return None


def more_stages_than_layers(judged: Judged) -> Iterator[Finding]:
    """DSG106: a side has more pipeline stages than the model has layers."""
    for where, side in judged.sides.items():
        if side.pp > judged.layout.num_layers:
            message = f"pp {side.pp} for a model of {judged.layout.num_layers} layers"
            yield finding("DSG106", message, where=f"{where}.pp")


def decode_pipeline(judged: Judged) -> Iterator[Finding]:
    """DSG103: the decode's pipeline stages are neither 1 nor the prefill's."""
    if judged.decode.pp not in (1, judged.prefill.pp):
        message = f"decode pp {judged.decode.pp} with prefill pp {judged.prefill.pp}"
        yield finding("DSG103", message, where=f"{judged.where}.pp")


def idle_dp_attention(judged: Judged) -> Iterator[Finding]:
    """DSG104: DP attention is on, and dp is 1."""
    for where, side in judged.sides.items():
        if side.dp_attention and side.dp == 1:
            yield finding("DSG104", "DP attention is on with dp 1", where=f"{where}.dp_attention")


def plain_dp_prefill(judged: Judged) -> Iterator[Finding]:
    """DSG105: the prefill has dp above 1 without DP attention."""
    if judged.prefill.dp > 1 and not judged.prefill.dp_attention:
        yield finding("DSG105", f"prefill dp {judged.prefill.dp} without DP attention", where="prefill.dp")


def connector_outcome(judged: Judged) -> Iterator[Finding]:
    """DSG111 to DSG117: what this release does with the plan, and the first release that is right."""
    verdict = judged.verdict
    code = _CODES.get(verdict.outcome)
    if code is None:
        return
    if verdict.outcome is Outcome.RUNTIME_ERROR and judged.case.stages > 1:
        code = "DSG117"
    fix = f"install sglang>={verdict.minimum_release}" if verdict.minimum_release else _without_release(judged)
    message = f"SGLang {judged.choice.sglang}, {head_case(judged)}: {verdict.reason}"
    yield finding(code, message, where=judged.where, fix=fix)


def no_safe_release(judged: Judged) -> Iterator[Finding]:
    """DSG121: this release is not right, and no later one will help."""
    verdict = judged.verdict
    if verdict.outcome in _CODES and verdict.minimum_release is None:
        message = f"{head_case(judged)}: no SGLang release through the newest known is right"
        yield finding("DSG121", message, where=judged.where, fix=_without_release(judged))


def unknown_release(judged: Judged) -> Iterator[Finding]:
    """DSG131: the release is not one of those known."""
    if judged.choice.approximate:
        place = "the newest known" if judged.choice.newer_than_known else "the nearest known below it"
        message = f"SGLang {judged.choice.sglang} is judged as {judged.choice.release.name}, {place}"
        yield finding("DSG131", message, where="engine")


def release_not_studied(judged: Judged) -> Iterator[Finding]:
    """DSG118: what this release does with this cache is not known."""
    verdict = judged.verdict
    if verdict.outcome is Outcome.UNSUPPORTED and verdict.minimum_release:
        fix = f"install sglang>={verdict.minimum_release}"
        message = f"SGLang {judged.choice.sglang}, {head_case(judged)}: {verdict.reason}"
        yield finding("DSG118", message, where=judged.where, fix=fix)


def too_slow(judged: Judged) -> Iterator[Finding]:
    """DSG141: the link asked for cannot carry a request's KV in the time to first token asked for."""
    request, traffic = judged.request, judged.traffic
    if traffic is None or request.link is None or request.ttft_s is None:
        return
    link = find_link(request.link)
    seconds = traffic.seconds(link)
    if seconds > request.ttft_s:
        message = (
            f"{request.tokens} tokens need at least {seconds * 1000:.0f} ms on {link.label}, more than the "
            f"{request.ttft_s * 1000:.0f} ms to the first token"
        )
        yield finding("DSG141", message, where=judged.where)


def mixed_pools(verdict: Verdict, decode_pools: Sequence[Parallelism]) -> Iterator[Finding]:
    """DSG122: decode pools that need the prefill's heads cut in different ways."""
    if not verdict.ok:
        sizes = ", ".join(str(pool.attention_tp) for pool in decode_pools)
        yield finding("DSG122", f"decode pools of attention TP {sizes}: {verdict.reason}", where="decode")


RULES: tuple[Callable[[Judged], Iterator[Finding]], ...] = (
    tp_not_multiple,
    heads_not_loadable,
    decode_pipeline,
    more_stages_than_layers,
    idle_dp_attention,
    plain_dp_prefill,
    connector_outcome,
    no_safe_release,
    release_not_studied,
    unknown_release,
    too_slow,
)


def head_case(judged: Judged) -> str:
    """Name how heads are spread between the two sides, in one phrase with the sizes."""
    p, d, t = judged.prefill.attention_tp, judged.decode.attention_tp, judged.layout.total_kv_heads
    if judged.case.whole:
        return f"TP{p} -> TP{d} with a latent cache"
    stages = f", {judged.prefill.pp} -> {judged.decode.pp} stages" if judged.case.stages > 1 else ""
    return f"TP{p} -> TP{d} with {t} KV heads ({_spread(p, d, t)}{stages})"


def _spread(p: int, d: int, t: int) -> str:
    if p == d:
        return "equal TP"
    if p > d:
        return "prefill wider, heads replicated" if p > t else "prefill wider"
    if d <= t:
        return "decode wider"
    return "both sides replicate heads, decode wider" if p > t else "decode wider, heads replicated"


def _without_release(judged: Judged) -> str:
    """What works on the newest known release, where no release is right for the sizes asked for."""
    case = judged.case
    if case.stages > 1 and judged.verdict.outcome in (Outcome.RUNTIME_ERROR, Outcome.WRONG_BYTES):
        return f"give the decode {case.pp} stages like the prefill, or the prefill one"
    if case.cut_whole or case.asymmetric or case.kind is LayoutKind.SWA:
        return "use equal attention TP on both sides"
    p, d, t = case.size
    if p < d and p > t:
        return f"use a prefill attention TP of at most {t} (the KV heads), or of {d} and more (the decode's)"
    return "use equal attention TP on both sides"


STOCK_CODES = frozenset(f"DSG1{number}" for number in (*range(11, 19), 21, 22))
"""What the stock connector gets wrong; with the overlay none of it happens to a plan that the overlay repairs."""


def with_overlay(findings: Sequence[Finding], *, where: str) -> list[Finding]:
    """The findings of a plan that counts on the overlay: what it repairs becomes one note."""
    repaired = [found for found in findings if found.code in STOCK_CODES]
    kept = [found for found in findings if found.code not in STOCK_CODES]
    instead = "; ".join(dict.fromkeys(found.message for found in repaired)) or "nothing on this release"
    return [*kept, finding("DSG123", f"the overlay is loaded on prefill workers; without it: {instead}", where=where)]


def with_a_way_out(findings: Sequence[Finding]) -> list[Finding]:
    """The findings of a plan that the overlay would repair, and that does not count on it: each fix names it."""
    way = "or `connector: {overlay: auto}`: disagg's fix repairs it"
    return [replace(one, fix=f"{one.fix}; {way}") if one.code in STOCK_CODES else one for one in findings]


def overlay_required(choice: Choice, *, where: str) -> list[Finding]:
    """The finding of a plan that requires an overlay which cannot repair it."""
    why = "" if loads(choice.release) else f": it has no door for plugins, which SGLang {FIRST_WITH_PLUGINS} opened"
    return [finding("DSG124", f"the overlay cannot make SGLang {choice.sglang} right for this plan{why}", where=where)]
