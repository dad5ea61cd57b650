"""A run's files: run.json when it starts, samples.jsonl as it goes, and reading them back."""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

from disagg_cli.errors import UsageError
from disagg_cli.evals.plan import Identity
from disagg_cli.evals.report import Facts
from disagg_cli.evals.served import Counters
from disagg_cli.evals.states import Sample, State

SAMPLES, RUN, SUMMARY = "samples.jsonl", "run.json", "summary.json"


class SampleLog:
    """samples.jsonl: one write for each line, so that whatever ends the process leaves whole lines.

    Never rewritten: of two lines with one id the later counts. A new log replaces an old one, unless it is resumed.
    """

    def __init__(self, path: Path, *, resume: bool = False) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | (0 if resume else os.O_TRUNC)
        self._file = os.open(path, flags, 0o600)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        os.close(self._file)

    def append(self, entry: Sample) -> None:
        """Write one sample."""
        os.write(self._file, json.dumps(entry.to_dict()).encode() + b"\n")


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Write a JSON file whole or not at all."""
    write_text(path, json.dumps(document, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text)
    partial.replace(path)


def write_identity(identity: Identity, folder: Path) -> None:
    """Write run.json."""
    write_json(folder / RUN, {"schema": "disagg.eval-run/1"} | identity.to_dict())


def read_identity(folder: Path) -> Identity:
    """Read run.json. UsageError where the folder holds no run."""
    path = folder / RUN
    try:
        return Identity.from_dict(json.loads(path.read_text()))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"no eval run: {error}", where=str(path), fix="name the folder that --out named") from None


def read_samples(folder: Path) -> list[Sample]:
    """All samples of a run; of two with one id the later. A last line that was cut off is left out."""
    path = folder / SAMPLES
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except OSError as error:
        raise UsageError(f"cannot read the samples: {error.strerror}", where=str(path)) from None
    found: dict[str, Sample] = {}
    for number, line in enumerate(lines, start=1):
        try:
            entry = Sample.from_dict(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"not a sample: {error}", where=f"{path}:{number}") from None
        found[entry.id] = entry
    return list(found.values())


def read_facts(folder: Path) -> Facts:
    """Why a run ended early, its notes and its servers, from summary.json; of a run that was killed, just that."""
    try:
        summary = json.loads((folder / SUMMARY).read_text())
        counters = tuple(Counters(**entry) for entry in summary["workers"])
        return Facts(
            stopped=summary["stopped"], notes=tuple(summary["notes"]), versions=summary["servers"], counters=counters
        )
    except (OSError, ValueError, KeyError, TypeError):
        return Facts(stopped="the process ended before the run did")


def done(samples: Iterable[Sample]) -> list[Sample]:
    """Those that a resumed run keeps: answers and failures. What was skipped is asked; what failed stays failed."""
    return [entry for entry in samples if entry.state is not State.SKIPPED]


def cut_torn_line(path: Path) -> None:
    """Take off the end of a last line that was cut, so that the next one starts on its own."""
    raw = path.read_bytes()
    whole = raw.rfind(b"\n") + 1
    if whole < len(raw):
        os.truncate(path, whole)
