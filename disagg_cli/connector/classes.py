"""Classes of plans that the releases treat alike, each with one plan that stands for it.

P and D are attention TP, T the KV heads. The letters are those of the table in the tests, found by executing every
release's own code.
"""

from dataclasses import dataclass

from disagg_cli.connector.case import Case
from disagg_cli.kv.layout import LayoutKind


@dataclass(frozen=True, slots=True)
class SizeClass:
    """A class, and its plan."""

    letter: str
    meaning: str
    case: Case

    @property
    def example(self) -> str:
        """The plan in one phrase."""
        p, d, t = self.case.size
        stages = f", {self.case.pp} -> {self.case.decode_pp} stages" if self.case.pp > 1 else ""
        return f"TP{p} -> TP{d}, T {t}{stages}" if not self.case.whole else f"TP{p} -> TP{d}{stages}"


def _case(p: int, d: int, t: int, *, pp: int = 1, kind: LayoutKind = LayoutKind.MHA, whole_cut: bool = False) -> Case:
    return Case(prefill_tp=p, decode_tp=d, kv_heads=t, pp=pp, kind=kind, cut_whole=whole_cut, stage_layers=(4,) * pp)


CLASSES: tuple[SizeClass, ...] = (
    SizeClass("A", "P = D", _case(4, 4, 8)),
    SizeClass("B", "P > D = 1, T >= P", _case(4, 1, 8)),
    SizeClass("C", "P > D >= 2, T >= P", _case(4, 2, 8)),
    SizeClass("Dd", "P > D, T < P: prefill replicates", _case(4, 1, 2)),
    SizeClass("E", "P < D <= T", _case(1, 4, 8)),
    SizeClass("F", "P = T < D: decode replicates", _case(2, 4, 2)),
    SizeClass("G", "P < T < D: decode replicates", _case(1, 4, 2)),
    SizeClass("H", "T < P < D: both replicate", _case(4, 8, 2)),
    SizeClass("M", "MLA, P > D", _case(4, 1, 1, kind=LayoutKind.MLA)),
    SizeClass("S", "sliding-window pool, P > D", _case(4, 2, 8, kind=LayoutKind.SWA)),
    SizeClass("L", "linear attention (GDN), P > D", _case(4, 2, 8, kind=LayoutKind.HYBRID)),
    SizeClass("X", "Mamba2, P > D", _case(4, 2, 8, kind=LayoutKind.HYBRID, whole_cut=True)),
    SizeClass("P", "prefill stages, P = D", _case(4, 4, 8, pp=2)),
    SizeClass("Q", "prefill stages, P > D", _case(4, 2, 8, pp=2)),
    SizeClass("R", "prefill stages, MLA", _case(4, 4, 1, pp=2, kind=LayoutKind.MLA)),
)


def class_of(case: Case) -> SizeClass | None:
    """The class of K and V per head without stages, by its sizes; None for other caches and for uneven ratios."""
    p, d, t = case.size
    if case.kind is not LayoutKind.MHA or case.latent or max(p, d) % min(p, d) or max(case.pp, case.decode_pp) > 1:
        return None
    if p == d:
        letter = "A"
    elif p > d:
        letter = "Dd" if t < p else "B" if d == 1 else "C"
    elif d <= t:
        letter = "E"
    else:
        letter = "F" if p == t else "G" if p < t else "H"
    return next(one for one in CLASSES if one.letter == letter)
