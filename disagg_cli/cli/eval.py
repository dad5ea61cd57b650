"""`disagg eval`: how well, and how fast, a deployment answers."""

from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from disagg_cli.cli.options import Json

if TYPE_CHECKING:
    from disagg_cli.evals.report import EvalReport
    from disagg_cli.evals.settings import EvalSettings

Result = TypeVar("Result")

app = typer.Typer(name="eval", help="Score a deployment, with a verdict.", no_args_is_help=True)

Url = Annotated[str | None, typer.Option(help="The server or router, http://host:port; the last run without it.")]
Model = Annotated[str | None, typer.Option(help="The served model's name; asked of the server without it.")]
DatasetOption = Annotated[str, typer.Option("--dataset", help="gsm8k, or mini: 40 questions, built in.")]
Data = Annotated[Path | None, typer.Option(help="A file of questions, or a folder with test.jsonl and train.jsonl.")]
Questions = Annotated[int | None, typer.Option(help="How many, by a seeded draw. [default: 200, or all if fewer]")]
Shots = Annotated[int, typer.Option(help="Worked examples before each question, from the train split.")]
Concurrency = Annotated[int, typer.Option(help="Requests in flight.")]
MaxTokens = Annotated[int, typer.Option(help="Longest answer.")]
Baseline = Annotated[float | None, typer.Option(help="The accuracy to hold the score against, such as 0.961.")]
Margin = Annotated[float, typer.Option(help="The drop below the baseline that is tolerated.")]
Alpha = Annotated[float, typer.Option(help="How often FAIL may be a false alarm.")]
Floor = Annotated[float | None, typer.Option(help="The accuracy below which it fails, whatever the baseline.")]
Seed = Annotated[int, typer.Option(help="Of the draw of questions.")]
Budget = Annotated[int, typer.Option("--failure-budget", help="Failed requests that still allow a verdict.")]
NoStream = Annotated[bool, typer.Option("--no-stream", help="Whole answers at once: faster, without token times.")]
Synthetic = Annotated[bool, typer.Option("--synthetic-weights", help="The weights are random: judge no score.")]
Timeout = Annotated[float, typer.Option("--timeout", help="Seconds for one request.")]
FirstToken = Annotated[float | None, typer.Option(help="Seconds until its first text. [default: --timeout]")]
Idle = Annotated[float, typer.Option("--idle-timeout", help="Seconds between two pieces of text.")]
RunTimeout = Annotated[float | None, typer.Option(help="Seconds for the whole run.")]
Out = Annotated[Path | None, typer.Option(help="Folder for samples.jsonl and summary.json.")]


@app.callback()
def evals() -> None:
    """Score a deployment, with a verdict."""


@app.command()
def gsm8k(
    url: Url = None,
    model: Model = None,
    dataset: DatasetOption = "gsm8k",
    data: Data = None,
    questions: Questions = None,
    shots: Shots = 8,
    concurrency: Concurrency = 64,
    max_tokens: MaxTokens = 512,
    baseline: Baseline = None,
    margin: Margin = 0.03,
    alpha: Alpha = 0.01,
    floor: Floor = None,
    seed: Seed = 42,
    failure_budget: Budget = 0,
    no_stream: NoStream = False,
    synthetic_weights: Synthetic = False,
    timeout: Timeout = 420,
    first_token_timeout: FirstToken = None,
    idle_timeout: Idle = 60,
    run_timeout: RunTimeout = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Ask GSM8K questions, score the answers, and judge the score against a baseline.

    Exits 0 for PASS or without a baseline, 6 for FAIL, 7 where nothing can be said: too few questions, or requests that
    failed.

    Example: disagg eval gsm8k --url http://127.0.0.1:8000 --questions 500 --baseline 0.961
    """
    from disagg_cli.errors import UsageError
    from disagg_cli.evals.client import Deadlines
    from disagg_cli.evals.settings import EvalSettings

    if dataset not in ("mini", "gsm8k"):
        raise UsageError(f"unknown dataset {dataset!r}", fix="--dataset mini or --dataset gsm8k")
    first_token = timeout if first_token_timeout is None else first_token_timeout
    settings = EvalSettings(
        dataset="mini" if dataset == "mini" else "gsm8k",
        data=data,
        questions=questions,
        shots=shots,
        concurrency=concurrency,
        max_tokens=max_tokens,
        baseline=baseline,
        margin=margin,
        alpha=alpha,
        floor=floor,
        seed=seed,
        model=model,
        stream=not no_stream,
        failure_budget=failure_budget,
        synthetic_weights=synthetic_weights,
        deadlines=Deadlines(request_s=timeout, first_token_s=first_token, idle_s=idle_timeout, run_s=run_timeout),
    )
    folder = out or _new_folder()
    _show(_run(settings, url or _last_run(), folder), folder, as_json=as_json)


def _run(settings: "EvalSettings", url: str, folder: Path) -> "EvalReport":
    from disagg_cli.console.eval_view import following
    from disagg_cli.evals.run import run_gsm8k

    with following(url) as progress:
        return _until_interrupted(run_gsm8k(settings, url, folder, progress))


def _show(report: "EvalReport", folder: Path, *, as_json: bool) -> None:
    from disagg_cli.console.eval_view import eval_view
    from disagg_cli.console.sink import show

    show(eval_view(report, folder), report.document() | {"out": str(folder)}, as_json=as_json)
    raise typer.Exit(report.exit_code)


def _last_run() -> str:
    from disagg_cli.runtime.rundir import current_router_url

    return current_router_url()


def _new_folder() -> Path:
    import time

    from disagg_cli.runtime.rundir import home

    return home() / "evals" / time.strftime("gsm8k-%Y%m%d-%H%M%S")


def _until_interrupted(work: Coroutine[Any, Any, Result]) -> Result:
    """Run it; SIGINT and SIGTERM cancel it, so that it can write what it has, and then raise Interrupted."""
    import asyncio
    import signal

    from disagg_cli.errors import Interrupted

    caught: list[signal.Signals] = []

    async def run() -> Result:
        task = asyncio.ensure_future(work)

        def stop(signum: signal.Signals) -> None:
            caught.append(signum)
            task.cancel()

        for signum in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(signum, stop, signum)
        return await task

    try:
        return asyncio.run(run())
    except asyncio.CancelledError:
        name = caught[0].name if caught else "a signal"
        raise Interrupted(f"interrupted by {name}; what was answered until then is written") from None
