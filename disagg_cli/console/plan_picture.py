"""The plan as a drawing for a design document: ranks as boxes, their heads as coloured bands, routes as lines.

Needs matplotlib, from the extra `plots`.
"""

from pathlib import Path
from typing import Any

from disagg_cli.errors import UsageError
from disagg_cli.findings.report import PlanReport, PoolReport
from disagg_cli.kv.heads import HeadRange
from disagg_cli.kv.plan import SlicePlan

_WRONG = "#c00000"
_HEADS = ("#4477aa", "#66ccee", "#228833", "#ccbb44", "#aa77bb", "#88aa99", "#7799dd", "#99cc66", "#bb9966", "#999999")
"""Colours of heads, in turn; none of them red, which is for wrong bytes."""
_BANDS = 64
"""Heads drawn in one box; more could not be told apart."""
_MOST = 64
"""Ranks drawn on one side; a larger side is cut, and the drawing says so."""


def draw(report: PlanReport, path: Path, *, kind: str) -> None:
    """Draw every pool of a report into one file (`svg` or `png`).

    Raises UsageError where matplotlib is missing, where nothing can be drawn, or where the file cannot be written.
    """
    try:
        import matplotlib as mpl
    except ImportError:
        raise UsageError("drawing a plan needs matplotlib", fix="pip install 'disagg-cli[plots]'") from None
    mpl.use("Agg")
    from matplotlib.figure import Figure

    pools = [pool for pool in report.pools if pool.plan]
    if not pools:
        raise UsageError("there is no plan to draw: the model does not load at these sizes")
    ranks = max(min(_MOST, max(report.prefill.attention_tp, pool.decode.attention_tp)) for pool in pools)
    figure = Figure(figsize=(7 * len(pools), 1.6 + 0.42 * ranks), layout="constrained")
    for number, pool in enumerate(pools):
        _Drawing(figure.add_subplot(1, len(pools), number + 1), report, pool).draw()
    try:
        figure.savefig(path, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
    except OSError as error:
        raise UsageError(f"cannot write the drawing: {error.strerror or error}", where=str(path)) from error


class _Drawing:
    """One pool's drawing: prefill on the left, decode on the right."""

    def __init__(self, axes: Any, report: PlanReport, pool: PoolReport) -> None:
        self.axes = axes
        self.report = report
        self.pool = pool

    def draw(self) -> None:
        """Draw boxes, bands, routes and the verdict."""
        plan = self.pool.plan
        assert plan is not None, "draw() drops pools without a plan"
        sizes = plan.prefill.attention_tp, plan.decode.attention_tp
        height = min(_MOST, max(sizes))
        self.axes.set(xlim=(-0.1, 10.1), ylim=(height + 0.3, -1.2))
        self.axes.axis("off")
        self._routes(plan, height)
        for x, tp, held, where in (
            (0.0, sizes[0], plan.heads_of_prefill, "prefill"),
            (7.0, sizes[1], plan.heads_of_decode, self.pool.where),
        ):
            self.axes.text(x + 1.5, -0.6, f"{where}, attention TP {tp}", ha="center", weight="bold", size=10)
            for rank in range(min(tp, _MOST)):
                wrong = where != "prefill" and rank in self.pool.wrong_ranks
                self._rank(x, _centre(rank, tp, height), rank, held(rank), wrong=wrong)
        self.axes.set_title(self._title(plan), size=9)

    def _rank(self, x: float, y: float, rank: int, held: HeadRange, *, wrong: bool) -> None:
        """A box with a band for each head."""
        from matplotlib.patches import Rectangle

        bands = min(len(held), _BANDS)
        width = 3.0 / bands
        for place, head in enumerate(range(held.first, held.first + bands)):
            band = Rectangle((x + place * width, y - 0.36), width, 0.72, facecolor=self._colour(head), edgecolor="none")
            self.axes.add_patch(band)
        edge, thick = (_WRONG, 2.5) if wrong else ("black", 0.8)
        self.axes.add_patch(Rectangle((x, y - 0.36), 3.0, 0.72, facecolor="none", edgecolor=edge, linewidth=thick))
        heads = "latent" if self.report.layout.latent else f"heads {held}" if len(held) > 1 else f"head {held}"
        text = f"{rank}: {heads}" + (", wrong bytes" if wrong else "")
        label = {"boxstyle": "round,pad=0.25", "facecolor": "white", "edgecolor": "none", "alpha": 0.85}
        colour = _WRONG if wrong else "black"
        self.axes.text(x + 1.5, y, text, ha="center", va="center", size=7.5, color=colour, bbox=label)

    def _routes(self, plan: SlicePlan, height: int) -> None:
        """A line for each route; red where the release in use garbles the rank."""
        for route in plan.routes:
            if max(route.prefill_rank, route.decode_rank) >= _MOST:
                continue
            ends = (
                _centre(route.prefill_rank, plan.prefill.attention_tp, height),
                _centre(route.decode_rank, plan.decode.attention_tp, height),
            )
            wrong = route.decode_rank in self.pool.wrong_ranks
            colour = _WRONG if wrong else self._colour(route.heads.first)
            self.axes.plot((3.0, 7.0), ends, color=colour, linewidth=2 if wrong else 1.4, zorder=0)

    @staticmethod
    def _colour(head: int) -> str:
        return _HEADS[head % len(_HEADS)]

    def _title(self, plan: SlicePlan) -> str:
        verdict, choice = self.pool.verdict, self.report.choice
        cut = f"; the first {_MOST} ranks of a side" if max(plan.prefill.tp, plan.decode.tp) > _MOST else ""
        waits = f"{plan.keys_expected} sender(s) per decode rank"
        return f"{self.report.layout.name}: {waits}{cut}\nSGLang {choice.sglang}: {verdict.outcome.value}"


def _centre(rank: int, tp: int, height: int) -> float:
    """Where a rank stands: sides of fewer ranks are spread over the height of the larger."""
    shown = min(tp, _MOST)
    return (rank + 0.5) * height / shown
