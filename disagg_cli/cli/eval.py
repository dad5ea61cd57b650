"""`disagg eval`: how well, and how fast, a deployment answers."""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from disagg_cli.cli.options import Json

if TYPE_CHECKING:
    from disagg_cli.evals.settings import EvalSettings

WRITTEN = "; what was answered until then is written"

app = typer.Typer(name="eval", help="Score a deployment, with a verdict.", no_args_is_help=True)


class Dataset(StrEnum):
    """gsm8k, or mini: 40 questions, built in."""

    gsm8k = "gsm8k"
    mini = "mini"


class Preset(StrEnum):
    """Whose prompts and scorer."""

    disagg = "disagg"
    sglang_run_eval = "sglang-run-eval"
    lm_eval = "lm-eval"
    vllm = "vllm"


class Endpoint(StrEnum):
    """Where questions are sent."""

    completions = "completions"
    chat = "chat"
    generate = "generate"


class PrefixMode(StrEnum):
    """The worked examples before each question."""

    fixed = "fixed"
    mixed = "mixed"
    none = "none"


class Scorer(StrEnum):
    """How a number is read from an answer."""

    flexible = "flexible"
    strict = "strict"
    sglang_run_eval = "sglang-run-eval"
    last_digits = "last-digits"
    lm_eval_flexible = "lm-eval-flexible"
    lm_eval_strict = "lm-eval-strict"


ASKING, JUDGING, LIMITS, PAIRS = "How to ask", "How to judge", "Deadlines", "Paired runs"


def _option(text: str, panel: str, *names: str) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, show_default=True)


Url = Annotated[str | None, typer.Option(help="The server or router, http://host:port; the last run without it.")]
Out = Annotated[Path | None, typer.Option(help="Folder for samples.jsonl, summary.json, report.md, junit.xml.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")]
Worker = Annotated[list[str] | None, typer.Option(help="A worker's URL, for its counters and version; repeat it.")]

Model = Annotated[str | None, _option("The served model's name; asked of the server without it.", ASKING)]
DatasetOption = Annotated[Dataset, _option("gsm8k, or mini: 40 questions, built in.", ASKING, "--dataset")]
Data = Annotated[Path | None, _option("A file of questions, or a folder with test.jsonl and train.jsonl.", ASKING)]
Questions = Annotated[int | None, _option("How many, by a seeded draw; without it 200, or all of a preset's.", ASKING)]
PresetOption = Annotated[Preset, _option("Ask and score as this harness does.", ASKING, "--preset")]
EndpointOption = Annotated[Endpoint | None, _option("Without it the preset's own.", ASKING, "--endpoint")]
PrefixOption = Annotated[PrefixMode, _option("mixed: no two prompts begin alike.", ASKING, "--prefix-mode")]
Thinking = Annotated[bool | None, _option("Chat: ask for reasoning, or for none.", ASKING, "--thinking/--no-thinking")]
Shots = Annotated[int | None, _option("Worked examples; without it 8, 0 in chat, 5 in a preset.", ASKING)]
Concurrency = Annotated[int, _option("Requests in flight.", ASKING)]
MaxTokens = Annotated[int | None, _option("Longest answer; without it 512, 2048 in chat.", ASKING)]
Seed = Annotated[int, _option("Of the draw of questions.", ASKING)]
NoStream = Annotated[bool, _option("Whole answers at once: cheaper, without token times.", ASKING, "--no-stream")]

ScorerOption = Annotated[Scorer | None, _option("Without it the preset's own.", JUDGING, "--scorer")]
BaselineOption = Annotated[
    str | None, _option("An accuracy such as 0.961, or an earlier run's folder.", JUDGING, "--baseline")
]
BaselinePreset = Annotated[Preset | None, _option("The preset that the baseline was made with.", JUDGING)]
BaselineN = Annotated[int | None, _option("The questions that the baseline was made with.", JUDGING)]
Force = Annotated[bool, _option("Compare although things were asked otherwise.", JUDGING, "--force")]
Margin = Annotated[float, _option("The drop below the baseline that is tolerated.", JUDGING)]
Alpha = Annotated[float, _option("How often FAIL may be a false alarm.", JUDGING)]
Floor = Annotated[float | None, _option("The accuracy below which it fails, whatever the baseline.", JUDGING)]
Budget = Annotated[int, _option("Failed requests that still allow a verdict.", JUDGING, "--failure-budget")]
Synthetic = Annotated[bool, _option("The weights are random: judge no score.", JUDGING, "--synthetic-weights")]

Timeout = Annotated[float, _option("Seconds for one request.", LIMITS, "--timeout")]
FirstToken = Annotated[float | None, _option("Seconds until its first text; without it --timeout.", LIMITS)]
Idle = Annotated[float, _option("Seconds between two pieces of text.", LIMITS, "--idle-timeout")]
RunTimeout = Annotated[float | None, _option("Seconds for the whole run.", LIMITS)]

Compare = Annotated[str | None, _option("The run, or URL, to compare with.", PAIRS)]
To = Annotated[str | None, _option("The run, or URL, that is compared; without it --url.", PAIRS, "--to")]
MinIdentical = Annotated[float | None, _option("Least share of identical answers.", PAIRS)]


@app.callback()
def evals() -> None:
    """Score a deployment, with a verdict."""


@app.command()
def gsm8k(
    url: Url = None,
    model: Model = None,
    dataset: DatasetOption = Dataset.gsm8k,
    data: Data = None,
    questions: Questions = None,
    preset: PresetOption = Preset.disagg,
    endpoint: EndpointOption = None,
    prefix_mode: PrefixOption = PrefixMode.fixed,
    thinking: Thinking = None,
    shots: Shots = None,
    concurrency: Concurrency = 64,
    max_tokens: MaxTokens = None,
    seed: Seed = 42,
    no_stream: NoStream = False,
    scorer: ScorerOption = None,
    baseline: BaselineOption = None,
    baseline_preset: BaselinePreset = None,
    baseline_n: BaselineN = None,
    force: Force = False,
    margin: Margin = 0.03,
    alpha: Alpha = 0.01,
    floor: Floor = None,
    failure_budget: Budget = 0,
    synthetic_weights: Synthetic = False,
    timeout: Timeout = 420,
    first_token_timeout: FirstToken = None,
    idle_timeout: Idle = 60,
    run_timeout: RunTimeout = None,
    compare: Compare = None,
    to: To = None,
    min_identical: MinIdentical = None,
    worker: Worker = None,
    out: Out = None,
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """Ask GSM8K questions, score the answers, and judge the score against a baseline or another run.

    Exits 0 for PASS or without a baseline, 6 for FAIL, 7 where nothing can be said: too few questions, or requests that
    failed.

    Example: disagg eval gsm8k --url http://127.0.0.1:8000 --questions 500 --baseline 0.961
    """
    options = dict(locals())  # forty options, each checked by Typer; `_settings` gives them their place
    _refuse_idle(options)
    if url is None and to is None:
        from disagg_cli.runtime.rundir import serving

        last = serving()
        url, weights = last.url, synthetic_weights or last.synthetic
        options |= {"worker": worker or last.workers, "synthetic_weights": weights}
    settings = _settings(options)
    if compare is not None:
        _compare(settings, compare, str(to or url), out, min_identical=min_identical, as_json=as_json)
    else:
        _run(settings, str(url), out, resume=resume, as_json=as_json)


def _refuse_idle(options: Mapping[str, Any]) -> None:
    """Refuse an option that would do nothing beside the others: whoever gave it meant something."""
    from disagg_cli.errors import UsageError

    paired = options["compare"] is not None
    given = {name for name, value in options.items() if value not in (None, False)}
    for names, belongs, fits in (
        (("to", "min_identical"), "--compare", paired),
        (("baseline_preset", "baseline_n"), "--baseline", options["baseline"] is not None),
        (("resume", "baseline", "floor"), "a run without --compare", not paired),
        (("resume",), "--out, the folder of the run to go on with", options["out"] is not None),
    ):
        for name in names:
            if name in given and not fits:
                raise UsageError(f"--{name.replace('_', '-')} belongs to {belongs}")
    if {"url", "to"} <= given:
        raise UsageError("--url and --to both name what is compared", fix="leave one of them out")


@app.command()
def score(
    file: Annotated[Path, typer.Argument(help="Rows with `completion` and `gold`, or a run's folder.")],
    scorer: ScorerOption = Scorer.flexible,
    as_json: Json = False,
) -> None:
    """Score stored completions again.

    Example: disagg eval score samples.jsonl --scorer strict --json
    """
    from disagg_cli.evals.rescore import rescore

    document = rescore(file, (scorer or Scorer.flexible).value).document()
    if as_json:  # without rich: a million rows are no table
        from disagg_cli.console.sink import write_json

        write_json(document)
        return
    from disagg_cli.console.eval_view import score_view
    from disagg_cli.console.sink import show

    show(score_view(document), document, as_json=False)


@app.command("show")
def show_run(
    run: Annotated[str, typer.Argument(help="A run's folder or name.")],
    plot: Annotated[Path | None, typer.Option(help="Draw latency and accuracy into this file.")] = None,
    as_json: Json = False,
) -> None:
    """Show an eval run again, summed up from its samples.

    Example: disagg eval show demo-1p2d-cpu-20260101-120000 --plot run.png
    """
    from disagg_cli.console.eval_view import eval_view
    from disagg_cli.console.sink import show
    from disagg_cli.evals.paired import run_folder
    from disagg_cli.evals.plots import plot as draw
    from disagg_cli.evals.record import read_facts, read_run
    from disagg_cli.evals.report import build

    folder = run_folder(run)
    identity, samples = read_run(folder)
    report = build(identity, samples, read_facts(folder))
    if plot:
        draw(samples, plot)
    show(eval_view(report, folder), report.document() | {"out": str(folder)}, as_json=as_json)
    raise typer.Exit(report.exit_code)


def _settings(options: Mapping[str, Any]) -> "EvalSettings":
    """The command's options as settings."""
    from dataclasses import fields

    from disagg_cli.evals.baseline import read_baseline
    from disagg_cli.evals.client import Deadlines
    from disagg_cli.evals.settings import EvalSettings

    plain = {name: _plain(value) for name, value in options.items()}
    if plain["baseline"] is not None:
        told = read_baseline(plain["baseline"], preset=plain["baseline_preset"], n=plain["baseline_n"])
        plain |= {"baseline": told[0], "baseline_record": told[1]}
    request_s, first_token_s = plain["timeout"], plain["first_token_timeout"]
    plain |= {
        "stream": not plain["no_stream"],
        "workers": tuple(plain["worker"] or ()),
        "deadlines": Deadlines(
            request_s=request_s,
            first_token_s=request_s if first_token_s is None else first_token_s,
            idle_s=plain["idle_timeout"],
            run_s=plain["run_timeout"],
        ),
    }
    return EvalSettings(**{field.name: plain[field.name] for field in fields(EvalSettings) if field.name in plain})


def _plain(value: object) -> Any:
    return value.value if isinstance(value, StrEnum) else value


def _run(settings: "EvalSettings", url: str, out: Path | None, *, resume: bool, as_json: bool) -> None:
    from disagg_cli.console.eval_view import eval_view, following
    from disagg_cli.console.sink import show
    from disagg_cli.evals.run import run_gsm8k
    from disagg_cli.runtime.interruption import until_interrupted

    folder = out or _own_folder()
    with following() as progress:
        report = until_interrupted(run_gsm8k(settings, url, folder, progress, resume=resume), and_then=WRITTEN)
    show(eval_view(report, folder), report.document() | {"out": str(folder)}, as_json=as_json)
    raise typer.Exit(report.exit_code)


def _compare(
    settings: "EvalSettings", before: str, after: str, out: Path | None, *, min_identical: float | None, as_json: bool
) -> None:
    from disagg_cli.console.eval_view import compare_view, following
    from disagg_cli.console.sink import show
    from disagg_cli.evals.compare import Limits
    from disagg_cli.evals.paired import run_pair
    from disagg_cli.runtime.interruption import until_interrupted

    limits = Limits(
        alpha=settings.alpha, margin=settings.margin, failure_budget=settings.failure_budget, identical=min_identical
    )
    folder = out or _own_folder()
    with following() as progress:
        work = run_pair(settings, before, after, folder, limits, progress, force=settings.force)
        comparison = until_interrupted(work, and_then=WRITTEN)
    show(compare_view(comparison, folder), comparison.document() | {"out": str(folder)}, as_json=as_json)
    raise typer.Exit(comparison.exit_code)


def _own_folder() -> Path:
    from disagg_cli.runtime.rundir import create_eval  # here: a run with --out need not know where disagg keeps its own

    return create_eval("gsm8k")
