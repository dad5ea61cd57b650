"""One GSM8K run: from settings and a URL to a report and its files.

`samples.jsonl` grows by one line as each question ends, so an interrupted run loses nothing; the summary files are
written at the end, also of a run that was cancelled.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from disagg_cli.errors import UsageError
from disagg_cli.evals import served
from disagg_cli.evals.client import Exchange, Pool, Request, allow_open_files
from disagg_cli.evals.files import write_report
from disagg_cli.evals.plan import Plan, make_plan
from disagg_cli.evals.protocols import encode
from disagg_cli.evals.record import SAMPLES, SampleLog, cut_torn_line, read_run, write_identity
from disagg_cli.evals.report import CATASTROPHE, EvalReport, Facts, build
from disagg_cli.evals.settings import EvalSettings
from disagg_cli.evals.states import ANSWERED, Sample, State, sample_of

# A run of failures this long, and no answer in between, means that the deployment is gone.
_LEAST_BREAKER = 8
# What is in flight when a run is stopped may still tell how it ended.
_GRACE_S = 3.0
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


async def run_gsm8k(
    settings: EvalSettings, url: str, out_dir: Path, progress: OnProgress = ignore, *, resume: bool = False
) -> EvalReport:
    """Ask the server at `url` (http://host:port) all questions, score them, and write the run's files to `out_dir`.

    Ends within the run's deadline, whatever the server does. On cancellation what is there is written first. `resume`:
    go on with the run in `out_dir`: what has an answer, or failed, stays so. UsageError: the data cannot be had, the
    folder cannot be written to, or the run to resume was another. EvalUndecided: nothing listens at the URL, or the
    disk is full.
    """
    url = served.base_url(url)
    settings = replace(settings, workers=tuple(served.base_url(worker, "--worker") for worker in settings.workers))
    plan = make_plan(settings, url, settings.model or await served.served_model(url))
    earlier: list[Sample] = []
    if resume:
        plan, earlier = _resumed(plan, out_dir)
    allow_open_files(min(settings.concurrency, len(plan.questions)))
    write_identity(plan.identity, out_dir)
    told = await served.versions((url, *settings.workers))
    before = await served.scrape(settings.workers)
    with SampleLog(out_dir / SAMPLES, resume=resume) as log:
        run = _Run(plan, earlier, log, progress)
        facts = Facts(notes=plan.notes, versions=told)
        try:
            await run.ask_all()
            facts = replace(facts, counters=await served.counters_since(settings.workers, before))
        except asyncio.CancelledError:
            run.stopped = run.stopped or "interrupted"
            raise
        finally:
            report = build(plan.identity, run.samples, replace(facts, stopped=run.stopped))
            write_report(report, run.samples, out_dir)
    return report


def _resumed(plan: Plan, folder: Path) -> tuple[Plan, list[Sample]]:
    """The same plan under the earlier run's name, and what that run has done."""
    was, samples = read_run(folder)
    if was.config_hash != plan.identity.config_hash:
        changed = [
            name
            for name in ("model", "sha256", "split", "ids", "prompt", "scorer", "max_tokens")
            if getattr(was, name) != getattr(plan.identity, name)
        ]
        raise UsageError(
            f"the run to resume was another: {', '.join(changed) or 'seed'} changed",
            where=str(folder),
            fix="give the options that it was started with, or another --out",
        )
    if (folder / SAMPLES).exists():
        cut_torn_line(folder / SAMPLES)
    identity = replace(plan.identity, run=was.run, attempt=was.attempt + 1)
    return replace(plan, identity=identity), [sample for sample in samples if sample.state is not State.SKIPPED]


class _Run:
    """The state of a run: what has been asked, what came back, and whether to go on."""

    def __init__(self, plan: Plan, earlier: list[Sample], log: SampleLog, progress: OnProgress) -> None:
        self._plan = plan
        self._settings = plan.identity.settings
        self._questions = {question.id: question for question in plan.questions}
        self._lengths: dict[str, int] = {}
        self._log = log
        self._progress = progress
        self._scorer = plan.protocol.scorer
        self._failed_in_a_row = 0
        self._odds = 1.0
        self._started = time.monotonic()
        self.samples = earlier
        self._order = 1 + max((entry.order for entry in earlier), default=-1)
        self._finished = {entry.id for entry in earlier}
        self._counts = Counter(entry.state for entry in earlier)
        self._right = sum(entry.correct for entry in earlier)
        self._tokens = 0
        self.stopped: str | None = None
        left = len(plan.questions) - len(earlier)
        self._pool = Pool(
            plan.identity.url,
            concurrency=max(1, min(self._settings.concurrency, left)),
            deadlines=replace(self._settings.deadlines, run_s=self._settings.run_deadline_s(left)),
            on_exchange=self._take,
            stream=self._settings.stream,
        )

    async def ask_all(self) -> None:
        """Send every question that has no answer yet, unless something stops the run."""
        await self._pool.run(self._requests())
        if self._pool.stopped == "run":
            self.stopped = "the run's deadline passed"

    def _requests(self) -> Iterator[Request]:
        plan, protocol, stream = self._plan, self._plan.protocol, self._settings.stream
        prompts = protocol.prompts(plan.questions, plan.shots)
        for number, (question, prompt) in enumerate(zip(plan.questions, prompts, strict=True)):
            if question.id in self._finished:
                continue
            self._lengths[question.id] = prompt.characters
            rid = f"disagg-{plan.identity.run}-{number}-{plan.identity.attempt}"
            body = encode(protocol.body(prompt, plan.identity.model, rid, stream=stream))
            yield Request(id=question.id, rid=rid, endpoint=protocol.endpoint, body=body)

    def _take(self, exchange: Exchange) -> None:
        name = exchange.request.id
        entry = sample_of(
            self._questions[name],
            exchange,
            order=self._order,
            prompt_characters=self._lengths[name],
            scorer=self._scorer,
        )
        self._order += 1
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
        missed = max(1 - gate.baseline, 1e-3)  # a baseline of 1 is one that was never seen to miss
        self._odds *= bad / gate.baseline if entry.correct else (1 - bad) / missed
        return self._odds >= _CATASTROPHE_ODDS

    def _stop(self, reason: str) -> None:
        self.stopped = reason
        self._pool.stop("stopped", grace_s=_GRACE_S)
