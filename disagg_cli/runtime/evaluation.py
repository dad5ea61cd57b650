"""The evals of a launch: once every pair is proven, and perhaps against an aggregated server."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from disagg_cli.engine.commands import Command
from disagg_cli.errors import DisaggError, EvalUndecided
from disagg_cli.evals.compare import Comparison, Limits
from disagg_cli.evals.data import load as load_questions
from disagg_cli.evals.data import load_shots
from disagg_cli.evals.paired import run_pair
from disagg_cli.evals.report import EvalReport
from disagg_cli.evals.run import Progress, run_gsm8k
from disagg_cli.evals.settings import EvalSettings
from disagg_cli.runtime import disk
from disagg_cli.runtime.prepare import Prepared
from disagg_cli.runtime.state import Recorder
from disagg_cli.runtime.supervisor import Supervisor
from disagg_cli.topology.deployment import Deployment
from disagg_cli.topology.spec import GsmSpec


class Reporter(Protocol):
    """Who shows what an eval has found."""

    def report(self, report: EvalReport) -> None:
        """Show an eval's result."""

    def comparison(self, comparison: Comparison) -> None:
        """Show how the answers compare with an aggregated server's."""


def check(prepared: Prepared) -> None:
    """Have the questions before hours of loading, not after. UsageError says which file to put where."""
    if spec := prepared.deployment.eval.gsm8k:
        data = Path(spec.data) if spec.data else None
        load_questions(spec.dataset, data)
        load_shots(spec.dataset, spec.shots, data)


async def evaluate(
    prepared: Prepared, supervisor: Supervisor, recorder: Recorder, reporter: Reporter
) -> DisaggError | None:
    """Run the evals that the topology names. Return what decides the exit code once the run ends, if anything."""
    spec = prepared.deployment.eval.gsm8k
    if spec is None:
        return None
    workers = tuple(worker.url for worker in prepared.deployment.workers)
    settings, folder = settings_of(spec, prepared.deployment, workers), recorder.directory.path / "eval"
    try:
        if prepared.aggregated:
            return await _compare(prepared, prepared.aggregated, supervisor, recorder, reporter, settings, folder)
        recorder.run_phase("evaluating", "GSM8K answers")
        report = await run_gsm8k(settings, prepared.deployment.router.url, folder, _progress(recorder))
    except OSError as error:
        if not disk.is_full(error):
            raise
        recorder.event("eval", "gsm8k: given up, for the disk takes no more answers")
        return EvalUndecided(f"the eval's answers could not be kept: {error.strerror}", where=str(folder))
    recorder.event("eval", f"gsm8k: {report.verdict.outcome}")
    reporter.report(report)
    return report.error()


async def _compare(
    prepared: Prepared,
    server: Command,
    supervisor: Supervisor,
    recorder: Recorder,
    reporter: Reporter,
    settings: EvalSettings,
    folder: Path,
) -> DisaggError | None:
    """Ask an aggregated server the same questions. It starts only now, so that the proof had the cores."""
    recorder.run_phase("evaluating", "the aggregated server to be healthy")
    url = prepared.urls[server.name]
    await supervisor.start([server])
    await supervisor.healthy({server.name: url})
    recorder.run_phase("evaluating", "GSM8K answers of both")
    router = prepared.deployment.router.url
    comparison = await run_pair(settings, url, router, folder, Limits(), _progress(recorder))
    recorder.event("eval", f"gsm8k against the aggregated server: {comparison.outcome}")
    reporter.comparison(comparison)
    return comparison.error()


def _progress(recorder: Recorder) -> Callable[[Progress], None]:
    def tell(progress: Progress) -> None:
        recorder.state.waiting_for = f"GSM8K answers, {progress.done} of {progress.planned}"

    return tell


def settings_of(spec: GsmSpec, deployment: Deployment, workers: tuple[str, ...]) -> EvalSettings:
    """What the topology says about the eval, as the eval wants it."""
    return EvalSettings(
        dataset=spec.dataset,
        data=Path(spec.data) if spec.data else None,
        questions=spec.questions,
        shots=spec.shots,
        concurrency=spec.concurrency,
        max_tokens=spec.max_tokens,
        baseline=spec.baseline,
        margin=spec.margin,
        seed=spec.seed,
        model=deployment.model.served_name,
        workers=workers,
        synthetic_weights=deployment.model.synthetic is not None,
    )
