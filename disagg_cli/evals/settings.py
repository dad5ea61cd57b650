"""What a run is asked to do."""

import math
from dataclasses import dataclass, field
from pathlib import Path

from disagg_cli.errors import UsageError
from disagg_cli.evals.baseline import Baseline
from disagg_cli.evals.client import Deadlines
from disagg_cli.evals.data import DatasetName
from disagg_cli.evals.protocols import Endpoint, PrefixMode, Preset, Protocol, choose_protocol
from disagg_cli.evals.statistics import Gate

DEFAULT_QUESTIONS = 200
_LONGEST_RUN_S = 7200.0
_LARGEST = 2**31 - 1  # servers keep seeds and counts in 32 or 64 bits


def check_share(name: str, share: float | None, *, most: float | None = None) -> None:
    """UsageError where an option is no share: above 0, and below 1 or at most `most`."""
    if share is None or 0 < share < 1 or share == most:
        return
    told = f"--{name} {share / 100:g}, not {share:g}" if 1 < share <= 100 else None
    raise UsageError(f"--{name} is {share:g}; it must be a share between 0 and 1", fix=told)


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalSettings:
    """One GSM8K run. The defaults suit a base model behind `/v1/completions`.

    `questions`: None takes 200, or all where there are fewer; all of a preset's. `ids`: these questions, whatever else
    is said. `shots`, `max_tokens`, `scorer`, `endpoint`: None takes the protocol's. `model`: None asks the server.
    `baseline_record`: how the baseline was made, if known. `failure_budget`: requests that may fail in transport before
    the run is not judged. `synthetic_weights`: the model has random weights, so that the score means nothing, and the
    report says so. `workers`: base URLs of prefill and decode workers, for their versions and counters.
    """

    dataset: DatasetName = "gsm8k"
    data: Path | None = None
    questions: int | None = None
    ids: tuple[str, ...] | None = None
    preset: Preset = "disagg"
    endpoint: Endpoint | None = None
    prefix_mode: PrefixMode = "fixed"
    thinking: bool | None = None
    scorer: str | None = None
    shots: int | None = None
    concurrency: int = 64
    max_tokens: int | None = None
    baseline: float | None = None
    baseline_record: Baseline | None = None
    force: bool = False
    margin: float = 0.03
    alpha: float = 0.01
    floor: float | None = None
    seed: int = 42
    model: str | None = None
    stream: bool = True
    failure_budget: int = 0
    synthetic_weights: bool = False
    workers: tuple[str, ...] = ()
    deadlines: Deadlines = field(default_factory=Deadlines)

    def __post_init__(self) -> None:
        """Refuse what cannot run. UsageError names the option."""
        for name, value, least in (
            ("questions", self.questions, 1),
            ("shots", self.shots, 0),
            ("concurrency", self.concurrency, 1),
            ("max-tokens", self.max_tokens, 1),
            ("failure-budget", self.failure_budget, 0),
            ("seed", self.seed, 0),
        ):
            if value is not None and not least <= value <= _LARGEST:
                raise UsageError(f"--{name} is {value}; it must be at least {least}, and at most {_LARGEST}")
        for name, share in (("margin", self.margin), ("alpha", self.alpha), ("floor", self.floor)):
            check_share(name, share)
        check_share("baseline", self.baseline, most=1.0)
        for name, seconds in (
            ("timeout", self.deadlines.request_s),
            ("first-token-timeout", self.deadlines.first_token_s),
            ("idle-timeout", self.deadlines.idle_s),
            ("run-timeout", self.deadlines.run_s),
        ):
            if seconds is not None and not (math.isfinite(seconds) and seconds > 0):
                raise UsageError(f"--{name} is {seconds:g}; it must be a number of seconds above 0")

    @property
    def gate(self) -> Gate | None:
        """What the score is held against; None without a baseline."""
        if self.baseline is None:
            return None
        return Gate(baseline=self.baseline, margin=self.margin, alpha=self.alpha, floor=self.floor)

    def protocol(self) -> Protocol:
        """How questions are asked and scored. UsageError where options contradict each other."""
        return choose_protocol(
            self.preset,
            self.endpoint,
            shots=self.shots,
            prefix_mode=self.prefix_mode,
            max_tokens=self.max_tokens,
            thinking=self.thinking,
            scorer=self.scorer,
            seed=self.seed,
        )

    def run_deadline_s(self, planned: int) -> float:
        """The given deadline of the whole run, else the time that all requests could take, at most two hours."""
        if self.deadlines.run_s is not None:
            return self.deadlines.run_s
        rounds = -(-planned // self.concurrency)
        return min(rounds * self.deadlines.request_s + 10, _LONGEST_RUN_S)
