"""One GSM8K run: from settings and a URL to a report and its files.

`samples.jsonl` grows by one line as each question ends, so an interrupted run loses nothing; `summary.json` is written
at the end, also of a run that was cancelled.
"""

import asyncio
import json
import math
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import aiohttp

from disagg_cli.errors import EvalUndecided, UsageError
from disagg_cli.evals import prompts
from disagg_cli.evals.answers import SCORER
from disagg_cli.evals.client import Exchange, Pool, Request
from disagg_cli.evals.data import Question, load, load_shots, sample
from disagg_cli.evals.report import CATASTROPHE, EvalReport, Identity, build
from disagg_cli.evals.settings import DEFAULT_QUESTIONS, EvalSettings
from disagg_cli.evals.states import ANSWERED, Sample, State, sample_of

_MODELS_TIMEOUT_S = 10
# A run of failures this long, and no answer in between, means that the deployment is gone.
_LEAST_BREAKER = 8
# Early stop: accuracy 20 points below the baseline explains the answers a thousand times better than the baseline.
_CATASTROPHE_DROP, _CATASTROPHE_ODDS = 0.2, 1000.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """Where a run stands."""

    planned: int
    done: int
    counts: Mapping[State, int]
    right: int
    in_flight: int
    output_tokens: int
    elapsed_s: float


OnProgress = Callable[[Progress], None]


def ignore(_progress: Progress) -> None:
    """For callers that show nothing."""


async def run_gsm8k(settings: EvalSettings, url: str, out_dir: Path, progress: OnProgress = ignore) -> EvalReport:
    """Ask the server at `url` (http://host:port) all questions, score them, and write samples.jsonl and summary.json.

    Ends within the run's deadline, whatever the server does. On cancellation what is there is written first.
    UsageError: the data cannot be had; EvalUndecided: nothing listens at the URL.
    """
    questions, notes, identity = await _prepare(settings, url)
    with SampleLog(out_dir / "samples.jsonl") as log:
        run = _Run(identity, questions, log, progress)
        try:
            await run.ask_all()
        except asyncio.CancelledError:
            run.stopped = run.stopped or "interrupted"
            raise
        finally:
            report = build(identity, run.samples, stopped=run.stopped, notes=notes)
            write_summary(report, out_dir)
    return report


class SampleLog:
    """samples.jsonl: one write for each line, so that whatever ends the process leaves whole lines."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        os.close(self._file)

    def append(self, entry: Sample) -> None:
        """Write one sample."""
        os.write(self._file, json.dumps(entry.to_dict()).encode() + b"\n")


def write_summary(report: EvalReport, out_dir: Path) -> None:
    """Write summary.json whole or not at all."""
    partial = out_dir / "summary.json.partial"
    partial.write_text(json.dumps(report.document(), indent=2) + "\n")
    partial.replace(out_dir / "summary.json")


async def _prepare(settings: EvalSettings, url: str) -> tuple[tuple[Question, ...], list[str], Identity]:
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"not a URL: {url}", fix="--url http://127.0.0.1:8000")
    dataset = load(settings.dataset, settings.data)
    questions, notes = _choose(settings, dataset.questions)
    model = settings.model or await served_model(url)
    identity = Identity(
        run=secrets.token_hex(4),
        url=url,
        model=model,
        dataset=dataset.name,
        split=dataset.split,
        source=dataset.source,
        sha256=dataset.sha256,
        custom_data=dataset.custom,
        ids=tuple(question.id for question in questions),
        prompt=prompts.prompt_version(settings.shots),
        scorer=SCORER,
        settings=settings,
    )
    return questions, notes, identity


def _choose(settings: EvalSettings, available: Sequence[Question]) -> tuple[tuple[Question, ...], list[str]]:
    count, most = settings.questions, len(available)
    if count is None:
        count = min(DEFAULT_QUESTIONS, most)
    if settings.dataset == "mini" and settings.data is None and count > most:
        return sample(available, most, settings.seed), [f"{count} questions were asked for; mini has {most}"]
    return sample(available, count, settings.seed), []


async def served_model(url: str) -> str:
    """The name of the model that the server serves; `default`, which SGLang takes for any, where it does not say."""
    timeout = aiohttp.ClientTimeout(total=_MODELS_TIMEOUT_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(url.rstrip("/") + "/v1/models") as response,
        ):
            listing = await response.json(content_type=None)
            return str(listing["data"][0]["id"])
    except aiohttp.ClientConnectorError as error:
        raise EvalUndecided(
            f"nothing answers: {error}", where=url, fix="start the deployment, or give its --url"
        ) from None
    except (aiohttp.ClientError, TimeoutError, ValueError, KeyError, IndexError, TypeError):
        return "default"


class _Run:
    """The state of a run: what has been asked, what came back, and whether to go on."""

    def __init__(self, identity: Identity, questions: Sequence[Question], log: SampleLog, progress: OnProgress) -> None:
        self._identity = identity
        self._settings = identity.settings
        self._questions = {question.id: question for question in questions}
        self._lengths: dict[str, int] = {}
        self._log = log
        self._progress = progress
        self._counts: Counter[State] = Counter()
        self._right = self._tokens = self._failed_in_a_row = 0
        self._odds = 1.0
        self._started = time.monotonic()
        self.samples: list[Sample] = []
        self.stopped: str | None = None
        limits = replace(self._settings.deadlines, run_s=self._settings.run_deadline_s(len(questions)))
        self._pool = Pool(
            identity.url,
            concurrency=min(self._settings.concurrency, len(questions)),
            deadlines=limits,
            on_exchange=self._take,
            stream=self._settings.stream,
        )

    async def ask_all(self) -> None:
        """Send every question, unless something stops the run."""
        await self._pool.run(self._requests())
        if self._pool.stopped == "run":
            self.stopped = "the run's deadline passed"

    def _requests(self) -> Iterator[Request]:
        settings, identity = self._settings, self._identity
        examples = prompts.worked_examples(load_shots(settings.dataset, settings.shots, settings.data))
        common = {
            "model": identity.model,
            "max_tokens": settings.max_tokens,
            "temperature": 0,
            "top_p": 1,
            "seed": settings.seed,
            "stop": [prompts.STOP],
        }
        if settings.stream:
            common |= {"stream": True, "stream_options": {"include_usage": True}}
        for number, question in enumerate(self._questions.values()):
            prompt = prompts.completion_prompt(examples, question.question)
            self._lengths[question.id] = len(prompt)
            rid = f"disagg-{identity.run}-{number}-1"
            body = json.dumps(common | {"prompt": prompt, "rid": rid}).encode()
            yield Request(id=question.id, rid=rid, path="/v1/completions", body=body)

    def _take(self, exchange: Exchange) -> None:
        name = exchange.request.id
        entry = sample_of(self._questions[name], exchange, len(self.samples), self._lengths[name])
        self._log.append(entry)
        self.samples.append(entry)
        self._counts[entry.state] += 1
        self._right += entry.correct
        self._tokens += entry.completion_tokens or 0
        self._consider_stopping(entry)
        self._progress(self._where())

    def _where(self) -> Progress:
        return Progress(
            planned=len(self._questions),
            done=len(self.samples),
            counts=self._counts,
            right=self._right,
            in_flight=self._pool.in_flight,
            output_tokens=self._tokens,
            elapsed_s=time.monotonic() - self._started,
        )

    def _consider_stopping(self, entry: Sample) -> None:
        """End early where the deployment is gone, or the score beyond doubt: never because things go well."""
        if self.stopped or self._pool.stopped:
            return
        self._failed_in_a_row = 0 if entry.state in ANSWERED else self._failed_in_a_row + 1
        lost = self._counts[State.ERROR] + self._counts[State.TIMEOUT]
        limit = max(_LEAST_BREAKER, self._settings.concurrency)
        if self._failed_in_a_row >= limit and lost > self._settings.failure_budget:
            self._stop(f"the last {self._failed_in_a_row} requests all failed")
        elif self._catastrophe(entry):
            self._stop(f"{CATASTROPHE}: {self._right} of {len(self.samples)} right, far below the baseline")

    def _catastrophe(self, entry: Sample) -> bool:
        """A likelihood-ratio test that a good deployment fails once in a thousand runs (Ville's inequality)."""
        gate = self._settings.gate
        if gate is None or self._settings.synthetic_weights or entry.state not in ANSWERED:
            return False
        bad = max(gate.baseline - max(_CATASTROPHE_DROP, 2 * gate.margin), 0.01)
        if bad >= gate.baseline:
            return False
        ratio = bad / gate.baseline if entry.correct else (1 - bad) / (1 - gate.baseline)
        self._odds *= ratio
        return self._odds >= _CATASTROPHE_ODDS and math.isfinite(self._odds)

    def _stop(self, reason: str) -> None:
        self.stopped = reason
        self._pool.stop("stopped")
