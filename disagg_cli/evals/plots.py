"""Pictures of a run: how long answers took, and how accuracy went in the order in which they came."""

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from disagg_cli.errors import UsageError
from disagg_cli.evals.states import ANSWERED, Sample

_CURVES = {
    "first_token_s": "first token",
    "second_token_gap_s": "first to second token",
    "end_to_end_s": "whole answer",
}


def plot(samples: Sequence[Sample], file: Path) -> None:
    """Draw both into one file; its ending (.png, .svg, .pdf) says which kind. UsageError without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError("plots need matplotlib", fix="pip install 'disagg-cli[plots]'") from None
    answered = sorted((sample for sample in samples if sample.state in ANSWERED), key=lambda sample: sample.order)
    if not answered:
        raise UsageError("there is nothing to plot: no question was answered")
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    _latency(left, answered)
    _accuracy(right, answered)
    try:
        figure.savefig(file)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot write the plot: {error}", where=str(file), fix="--plot FILE.png") from None


def _latency(axes: Any, answered: Sequence[Sample]) -> None:
    for name, label in _CURVES.items():
        values = sorted(value for sample in answered if (value := getattr(sample, name)) is not None)
        if values:
            axes.step(values, [(rank + 1) / len(values) for rank in range(len(values))], where="post", label=label)
    axes.set(xlabel="seconds", ylabel="share of answers", xscale="symlog", ylim=(0, 1.02), title="Latency")
    axes.set_xscale("symlog", linthresh=0.001)
    axes.legend()


def _accuracy(axes: Any, answered: Sequence[Sample]) -> None:
    right = list(accumulate(int(sample.correct) for sample in answered))
    window = max(10, len(answered) // 10)
    recent = [
        (total - (right[end - window] if end >= window else 0)) / min(end + 1, window)
        for end, total in enumerate(right)
    ]
    axes.plot([total / (end + 1) for end, total in enumerate(right)], label="all so far")
    axes.plot(recent, label=f"last {window}", alpha=0.6)
    axes.set(
        xlabel="answers, in the order of completion", ylabel="accuracy", ylim=(-0.02, 1.02), title="Accuracy by order"
    )
    axes.legend()
