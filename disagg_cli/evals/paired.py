"""The same questions to two deployments, or to one and an earlier run, and the comparison of both."""

from dataclasses import replace
from pathlib import Path

from disagg_cli.evals.compare import Comparison, Limits, Side, compare
from disagg_cli.evals.record import read_identity, write_json
from disagg_cli.evals.run import OnProgress, ignore, run_gsm8k
from disagg_cli.evals.settings import EvalSettings

COMPARISON = "comparison.json"


async def run_pair(
    settings: EvalSettings,
    before: str,
    after: str,
    out_dir: Path,
    limits: Limits,
    progress: OnProgress = ignore,
    *,
    force: bool = False,
) -> Comparison:
    """Compare `after` with `before`, each a URL or the folder of a run, and write comparison.json to `out_dir`.

    What is a URL is asked now, one after the other, so that neither slows the other down; `after` is asked what
    `before` was. UsageError where the two asked different things.
    """
    live = replace(settings, baseline=None, baseline_record=None)
    first = await _side(live, before, out_dir / "before", progress)
    asked = first.identity.settings if not is_url(before) else live
    same = replace(
        asked,
        ids=first.identity.ids,
        baseline=None,
        baseline_record=None,
        data=settings.data or asked.data,
        model=settings.model or asked.model,
        synthetic_weights=settings.synthetic_weights or asked.synthetic_weights,
        concurrency=settings.concurrency,
        deadlines=settings.deadlines,
        workers=settings.workers,
    )
    second = await _side(same, after, out_dir / "after", progress)
    comparison = compare(first, second, limits, force=force)
    write_json(out_dir / COMPARISON, comparison.document())
    return comparison


def is_url(place: str) -> bool:
    """Whether this names a server, not a folder."""
    return place.startswith(("http://", "https://"))


async def _side(settings: EvalSettings, place: str, folder: Path, progress: OnProgress) -> Side:
    if not is_url(place):
        return Side.read(run_folder(place))
    await run_gsm8k(settings, place, folder, progress)
    return Side.read(folder)


def run_folder(place: str) -> Path:
    """The folder of an eval run: itself, the `eval` of a launch, or one of either by its name. UsageError if none."""
    from disagg_cli.runtime.rundir import home  # here: what has a path needs no state folder

    path = Path(place)
    named = [home() / "runs" / place / "eval", home() / "evals" / place] if path.name == place else []
    folder = next((entry for entry in (path, path / "eval", *named) if (entry / "run.json").exists()), path)
    read_identity(folder)
    return folder
