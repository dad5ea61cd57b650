"""A run before its first request: the questions, how they are asked, and what makes its score comparable."""

import hashlib
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from disagg_cli.errors import UsageError
from disagg_cli.evals.baseline import Baseline
from disagg_cli.evals.client import Deadlines
from disagg_cli.evals.data import Dataset, Question, load, load_shots, sample
from disagg_cli.evals.protocols import Protocol
from disagg_cli.evals.settings import DEFAULT_QUESTIONS, EvalSettings


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """What must be the same for two scores to be comparable, and where they come from.

    `attempt`: 1, and one more with each time that the run was resumed; request ids name it.
    """

    run: str
    attempt: int = 1
    url: str
    model: str
    dataset: str
    split: str
    source: str
    sha256: str
    custom_data: bool
    ids: tuple[str, ...]
    prompt: str
    scorer: str
    max_tokens: int
    settings: EvalSettings

    @property
    def config_hash(self) -> str:
        """Of all that changes answers or their scores; the server's address and the deadlines do not."""
        names = ("model", "sha256", "split", "ids", "prompt", "scorer", "max_tokens")
        told = {name: getattr(self, name) for name in names} | {"seed": self.settings.seed}
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        settings = asdict(self.settings)
        settings["data"] = str(settings["data"]) if settings["data"] else None
        return asdict(self) | {"settings": settings, "config_hash": self.config_hash}

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> "Identity":
        """From a JSON object of ours. KeyError or TypeError where it is none."""
        known = {field.name: row[field.name] for field in fields(cls)}
        return cls(**known | {"ids": tuple(row["ids"]), "settings": _settings(row["settings"])})


def _settings(row: Mapping[str, Any]) -> EvalSettings:
    record = row["baseline_record"]
    return EvalSettings(
        **dict(row)
        | {
            "data": Path(row["data"]) if row["data"] else None,
            "ids": tuple(row["ids"]) if row["ids"] is not None else None,
            "workers": tuple(row["workers"]),
            "baseline_record": Baseline(**record | {"ids": tuple(record["ids"])}) if record else None,
            "deadlines": Deadlines(**row["deadlines"]),
        }
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """A run: questions in order, their worked examples, and notes for the report."""

    identity: Identity
    protocol: Protocol
    questions: tuple[Question, ...]
    shots: tuple[Question, ...]
    notes: tuple[str, ...]


def make_plan(settings: EvalSettings, url: str, model: str) -> Plan:
    """Load data and choose questions. UsageError: no data, options that contradict, a baseline made another way."""
    protocol = settings.protocol()
    dataset = load(settings.dataset, settings.data)
    shots, pool = _shots(settings, protocol, dataset)
    questions, notes = _choose(settings, protocol, pool)
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
        prompt=protocol.name,
        scorer=f"{protocol.scorer}/1",
        max_tokens=protocol.max_tokens,
        settings=settings,
    )
    notes += _compared_with_baseline(settings, identity)
    return Plan(identity=identity, protocol=protocol, questions=questions, shots=shots, notes=tuple(notes))


def _shots(
    settings: EvalSettings, protocol: Protocol, dataset: Dataset
) -> tuple[tuple[Question, ...], Sequence[Question]]:
    """The worked examples, and the questions that are left."""
    if protocol.shots_from == "test":
        if protocol.shots >= len(dataset.questions):
            raise UsageError(
                f"the first {protocol.shots} of {len(dataset.questions)} questions are examples: none is left to ask",
                fix="--shots with a smaller number, or --data with more questions",
            )
        return dataset.questions[: protocol.shots], dataset.questions[protocol.shots :]
    if protocol.examples == "lm-eval":
        return _all_train(settings), dataset.questions
    return load_shots(settings.dataset, protocol.shots, settings.data), dataset.questions


def _all_train(settings: EvalSettings) -> tuple[Question, ...]:
    """The whole train split: beside the test file, if it is there."""
    data = settings.data
    if data is not None and not data.is_dir() and (data.parent / "train.jsonl").exists():
        data = data.parent
    has_train = data is None or (data.is_dir() and (data / "train.jsonl").exists())
    return load(settings.dataset, data if has_train else None, "train").questions


def _choose(
    settings: EvalSettings, protocol: Protocol, available: Sequence[Question]
) -> tuple[tuple[Question, ...], list[str]]:
    if settings.ids is not None:
        return _by_id(settings.ids, available), []
    count, most = settings.questions, len(available)
    if count is None:
        count = min(DEFAULT_QUESTIONS, most) if protocol.draw else most
    if settings.dataset == "mini" and settings.data is None and count > most:
        return tuple(available), [f"{count} questions were asked for; mini has {most}"]
    if not protocol.draw and count <= most:
        return tuple(available[:count]), []
    return sample(available, count, settings.seed), []


def _by_id(ids: Sequence[str], available: Sequence[Question]) -> tuple[Question, ...]:
    known = {question.id: question for question in available}
    missing = [name for name in ids if name not in known]
    if missing:
        raise UsageError(
            f"{len(missing)} questions are not in this data, such as {missing[0]}", fix="use the same --data"
        )
    return tuple(known[name] for name in ids)


def _compared_with_baseline(settings: EvalSettings, identity: Identity) -> list[str]:
    if settings.baseline is None:
        return []
    if settings.baseline_record is None:
        return [
            "the baseline is a bare number: that it was made with this prompt, scorer and these questions is trusted"
        ]
    differences = settings.baseline_record.differences(
        preset=settings.preset,
        prompt=identity.prompt,
        scorer=identity.scorer,
        sha256=identity.sha256,
        ids=identity.ids,
    )
    if differences and not settings.force:
        raise UsageError(
            "the baseline was made another way: " + "; ".join(differences),
            where=settings.baseline_record.source,
            fix="ask the way the baseline was made (--preset, --questions, --data), or --force",
        )
    return [f"compared by force with a baseline made another way: {'; '.join(differences)}"] if differences else []
