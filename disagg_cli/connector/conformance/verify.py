"""Judge the installed connector: run plans on its own code, and compare what it does with what disagg says it does."""

import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from disagg_cli.connector.case import Case, Outcome, case_of
from disagg_cli.connector.classes import CLASSES
from disagg_cli.connector.conformance.exchange import Observed, observe
from disagg_cli.connector.conformance.installed import ConnectorChanged, Installed
from disagg_cli.connector.releases import Choice
from disagg_cli.connector.repairs import judge_repaired
from disagg_cli.connector.verdict import Verdict, judge_case, judge_pools
from disagg_cli.kv import heads
from disagg_cli.kv.layout import IndexCache, KVLayout, LayoutKind, UnsupportedLayout, WindowPool
from disagg_cli.kv.linear_state import LinearState, StateTensor
from disagg_cli.kv.parallelism import Parallelism
from disagg_cli.kv.plan import loads, plan_slices


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One plan to run: a small model, a prefill side and its decode pools."""

    label: str
    layout: KVLayout
    prefill: Parallelism
    pools: tuple[Parallelism, ...]

    @property
    def letter(self) -> str:
        """The class of plans (classes.py) whose example this is; empty for any other plan."""
        cases = [case_of(self.layout, self.prefill, pool) for pool in self.pools]
        return next((one.letter for one in CLASSES if len(cases) == 1 and _is_example(cases[0], one.case)), "")


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """A check, what was expected, and what was observed: None where this connector cannot be driven."""

    check: Check
    expected: Verdict
    observed: Observed | None
    note: str

    @property
    def agrees(self) -> bool:
        """Whether the installed connector does what the plan and its verdict say."""
        return self.observed is not None and not self.note

    @property
    def right(self) -> bool:
        """Whether every byte was right."""
        return self.observed is not None and self.observed.outcome is Outcome.OK

    def document(self) -> dict[str, Any]:
        """The cell as JSON shows it."""
        p, pools = self.check.prefill, self.check.pools
        return {
            "layout": self.check.label,
            "class": self.check.letter or None,
            "prefill_tp": p.attention_tp,
            "prefill_pp": p.pp,
            "decode_tp": [pool.attention_tp for pool in pools],
            "decode_pp": [pool.pp for pool in pools],
            "kv_heads": self.check.layout.total_kv_heads,
            "expected": self.expected.outcome.value,
            "observed": self.observed.outcome.value if self.observed else None,
            "detail": self.observed.detail if self.observed else self.note,
            "keys_expected": self.observed.keys_expected if self.observed else None,
            "agent_calls": dict(self.observed.agent_calls) if self.observed else None,
            "agrees": self.agrees,
            "note": self.note,
        }


def run_check(installed: Installed, check: Check, choice: Choice, *, overlay: bool = False) -> Cell:
    """Run one plan and compare."""
    expected = expect(check, choice, overlay=overlay)
    try:
        observed = observe(installed, check.layout, check.prefill, check.pools)
    except ConnectorChanged as error:
        return Cell(check=check, expected=expected, observed=None, note=f"this connector cannot be driven: {error}")
    return Cell(check=check, expected=expected, observed=observed, note=_difference(check, expected, observed))


def run_checks(installed: Installed, checks: Sequence[Check], choice: Choice, *, overlay: bool = False) -> list[Cell]:
    """Run plans one after another, with SGLang's own log lines kept off the screen."""
    logging.disable(logging.CRITICAL)
    try:
        return [run_check(installed, check, choice, overlay=overlay) for check in checks]
    finally:
        logging.disable(logging.NOTSET)


def judged(checks: Iterable[Check], choice: Choice, *, overlay: bool = False) -> list[Check]:
    """The checks of which disagg says something for this release, and which SGLang would load.

    With the overlay: those that it has to do with.
    """
    return [
        check
        for check in checks
        if fits(check)
        and (not overlay or check.layout.kind is LayoutKind.MHA)
        and expect(check, choice, overlay=overlay).outcome is not Outcome.UNSUPPORTED
    ]


def expect(check: Check, choice: Choice, *, overlay: bool = False) -> Verdict:
    """What disagg says of a check: of its first pool, of all together, or of the first of the others that fails."""
    cases = [case_of(check.layout, check.prefill, pool) for pool in check.pools]
    repaired = [judge_repaired(choice.release, case) for case in cases] if overlay else []
    verdicts = [verdict for verdict in repaired if verdict] or [judge_case(choice.release, case) for case in cases]
    together = [] if overlay or len(cases) == 1 else [_together(check, choice)]
    return next((verdict for verdict in (verdicts[0], *together, *verdicts[1:]) if not verdict.ok), verdicts[0])


def _together(check: Check, choice: Choice) -> Verdict:
    """Of decode pools that share a prefill rank's source list, later ones find it cut for the first."""
    return judge_pools(
        choice.release,
        check.prefill.attention_tp,
        [pool.attention_tp for pool in check.pools],
        check.layout.total_kv_heads,
        kind=check.layout.kind,
        latent=check.layout.latent,
    )


def _difference(check: Check, expected: Verdict, observed: Observed) -> str:
    """In words, where the installed connector does not do what was expected; empty where it does."""
    plans = [plan_slices(check.layout, check.prefill, pool) for pool in check.pools]
    keys = plans[-1].keys_expected if plans[-1] else None
    if len(plans) == 1 and observed.keys_expected not in (None, 0, keys):
        return f"it waits for {observed.keys_expected} senders, the plan for {keys}"
    if expected.outcome is not observed.outcome:
        return f"expected {expected.outcome.value}, saw {observed.outcome.value} ({observed.detail})"
    return ""


def grid(sizes: Sequence[int] = (1, 2, 4, 8, 16), kv_heads: Sequence[int] = (1, 2, 4, 8, 16, 32)) -> Iterator[Check]:
    """Every P, D, T of K and V per head, then the other caches, prefill stages and mixed pools at fewer sizes."""
    for t, p, d in product(kv_heads, sizes, sizes):
        yield Check(label="mha", layout=_layout(t), prefill=Parallelism(tp=p), pools=(Parallelism(tp=d),))
    for label, layout in _others().items():
        for p, d in product((1, 2, 4, 8), (1, 2, 4, 8)):
            yield Check(label=label, layout=layout, prefill=Parallelism(tp=p), pools=(Parallelism(tp=d),))
    eight = replace(_others()["gdn"], total_kv_heads=8)
    yield Check(label="gdn, 8 heads", layout=eight, prefill=Parallelism(tp=4), pools=(Parallelism(tp=2),))
    staged = {"mha": _layout(8), "mha, ragged stages": _layout(8, num_layers=5), **_others()}
    for label, layout in staged.items():
        for (p, d), pp in product(((2, 2), (4, 4), (4, 2), (2, 4)), (1, 2)):
            yield Check(
                label=label,
                layout=layout,
                prefill=Parallelism(tp=p, pp=2),
                pools=(Parallelism(tp=d, pp=pp),),
            )
    mixed = (
        (4, 2, (1, 4)),
        (8, 2, (4, 8)),
        (4, 2, (4, 8)),
        (8, 4, (1, 2)),
        (8, 2, (2, 4)),
        (2, 4, (4, 8)),
        (2, 1, (2, 4, 8)),
    )
    for t, p, pools in mixed:
        made = tuple(Parallelism(tp=d) for d in pools)
        yield Check(label="mha, mixed pools", layout=_layout(t), prefill=Parallelism(tp=p), pools=made)


def one_check(layout: KVLayout, prefill: Parallelism, pools: Sequence[Parallelism]) -> Check:
    """A model's plan as a check: its heads, layers and pools, with small heads and states.

    Raises UnsupportedLayout for compressed latents, whose pools are not laid out here.
    """
    if layout.compressed:
        raise UnsupportedLayout(f"{layout.name}: compressed latents cannot be run on recorded memory")
    sides = (prefill, *pools)
    step = math.lcm(*(side.attention_tp for side in sides))
    if not all(loads(layout, side.attention_tp) for side in sides):
        step = 1
    return Check(label=layout.kind.value, layout=_small(layout, step), prefill=prefill, pools=tuple(pools))


def fits(check: Check) -> bool:
    """Whether SGLang would load the model on every side, and map its ranks."""
    sides = (check.prefill, *check.pools)
    aligned = all(heads.aligned(check.prefill.attention_tp, pool.attention_tp) for pool in check.pools)
    return aligned and all(loads(check.layout, side.attention_tp) for side in sides)


def _is_example(case: Case, example: Case) -> bool:
    """Whether a case is a class's example, with nothing about it that the class does not name."""
    plain = not ((case.latent and case.kind is LayoutKind.HYBRID) or case.indexed or case.asymmetric or case.ragged)
    named = [(one.size, one.pp, one.decode_pp, one.kind, one.cut_whole) for one in (case, example)]
    return plain and named[0] == named[1]


def _small(layout: KVLayout, step: int) -> KVLayout:
    """The same layout with heads of one cell (or three and two, where K and V differ) and the shortest states."""
    key, value = (3, 2) if layout.asymmetric else (1, 1)
    window = replace(layout.window, head_dim=1, v_head_dim=1) if layout.window else None
    state = layout.state
    if state:
        tensors = tuple(_short(tensor, step) for tensor in state.tensors)
        state = replace(state, tensors=tensors, heads=())
    return replace(layout, head_dim=key, v_head_dim=None if layout.latent else value, window=window, state=state)


def _short(tensor: StateTensor, step: int) -> StateTensor:
    """Divide all parts by what they have in common, so far as ranks can still share them."""
    common = math.gcd(*tensor.parts)
    factor = common // step if common % step == 0 else 1
    return replace(tensor, parts=tuple(part // factor for part in tensor.parts))


def _layout(kv_heads: int, **changes: Any) -> KVLayout:
    return KVLayout(**{"name": "small", "total_kv_heads": kv_heads, "num_layers": 4, "head_dim": 1, **changes})


def _others() -> dict[str, KVLayout]:
    """A small model of every other cache."""
    window = WindowPool(layers=2, tokens=128, kv_heads=8, head_dim=1, v_head_dim=1)
    hybrid: dict[str, Any] = {"kind": LayoutKind.HYBRID, "num_layers": 8, "kv_layers": (3, 7)}
    latent: dict[str, Any] = {"latent": True, "v_head_dim": None}
    return {
        "mha, K and V of different size": _layout(8, head_dim=3, v_head_dim=2),
        "mla": _layout(1, kind=LayoutKind.MLA, **latent),
        "mla, sparse index": _layout(1, kind=LayoutKind.MLA, index=IndexCache(layers=4, bytes_per_key=8), **latent),
        "swa": _layout(8, kind=LayoutKind.SWA, kv_layers=(1, 3), window=window),
        "swa, other heads in windows": _layout(4, kind=LayoutKind.SWA, kv_layers=(1, 3), window=window),
        "gdn": _layout(2, state=_state(declared=True), **hybrid),
        "mamba2": _layout(8, state=_state(declared=False), **hybrid),
        "linear attention with a latent": _layout(1, state=_state(declared=True), **hybrid, **latent),
    }


def _state(*, declared: bool) -> LinearState:
    convolution = StateTensor(name="conv", parts=(8, 8, 16), bytes_per_channel=8, declared=declared)
    recurrent = StateTensor(name="ssm", parts=(16,), bytes_per_channel=8)
    return LinearState(layers=6, tensors=(convolution, recurrent), heads=(8, 16))
