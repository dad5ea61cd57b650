"""A baseline and how it was made. A score made another way is no baseline: prompts, scorers and questions move it by
several points."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from disagg_cli.errors import UsageError


@dataclass(frozen=True, kw_only=True, slots=True)
class Baseline:
    """How a baseline was made, as far as it is known; None and empty where it is not."""

    source: str
    preset: str | None = None
    prompt: str | None = None
    scorer: str | None = None
    sha256: str | None = None
    n: int | None = None
    ids: tuple[str, ...] = ()

    def differences(self, *, preset: str, prompt: str, scorer: str, sha256: str, ids: Sequence[str]) -> list[str]:
        """What a run with these would do otherwise than the baseline's."""
        pairs = {
            "preset": (self.preset, preset),
            "prompt": (self.prompt, prompt),
            "scorer": (self.scorer, scorer),
            "data (sha256)": (self.sha256, sha256),
            "number of questions": (self.n, len(ids)),
        }
        told = [
            f"{name}: {was} then, {now} now" for name, (was, now) in pairs.items() if was is not None and was != now
        ]
        if self.ids and set(self.ids) != set(ids) and self.n == len(ids):
            told.append("questions: as many, but not the same")
        return told


def read_baseline(given: str, *, preset: str | None = None, n: int | None = None) -> tuple[float, Baseline | None]:
    """A baseline from the command line: a number, or an earlier run's folder or summary.json.

    UsageError where it is neither. `preset` and `n`: how a number was made, if the user says so.
    """
    try:
        accuracy = float(given)
    except ValueError:
        return _from_run(Path(given))
    known = preset is not None or n is not None
    return accuracy, Baseline(source="--baseline", preset=preset, n=n) if known else None


def _from_run(path: Path) -> tuple[float, Baseline]:
    file = path / "summary.json" if path.is_dir() else path
    try:
        summary = json.loads(file.read_text())
        accuracy = float(summary["accuracy"])
        ids = tuple(summary["ids"])
        record = Baseline(
            source=str(file),
            prompt=summary["prompt"],
            scorer=summary["scorer"],
            sha256=summary["sha256"],
            n=len(ids),
            ids=ids,
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"not a baseline: {error}", where=str(file), fix="--baseline 0.961, or the folder of an earlier run"
        ) from None
    return accuracy, record
