"""A run's files: run.json when it starts, samples.jsonl as it goes, and reading them back."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from disagg_cli.errors import DisaggError, EvalUndecided, UsageError
from disagg_cli.evals.plan import Identity
from disagg_cli.evals.report import Facts
from disagg_cli.evals.served import Counters
from disagg_cli.evals.states import Sample

SAMPLES, EARLIER, RUN, SUMMARY = "samples.jsonl", "samples.earlier.jsonl", "run.json", "summary.json"


class SampleLog:
    """samples.jsonl: one write for each line, so that whatever ends the process leaves whole lines.

    Never rewritten: of two lines with one id the later counts. A new log sets an old one aside, unless that is resumed.
    UsageError where it cannot be opened, EvalUndecided where it can be written no further.
    """

    def __init__(self, path: Path, *, resume: bool = False) -> None:
        self._path = path
        with _writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists() and not resume:
                path.replace(path.with_name(EARLIER))
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        os.close(self._file)

    def append(self, entry: Sample) -> None:
        """Write one sample."""
        line = json.dumps(entry.to_dict()).encode() + b"\n"
        with _writing(self._path, EvalUndecided, "make room, then go on with --resume"):
            while line:  # a full disk takes a part of it
                line = line[os.write(self._file, line) :]


@contextmanager
def _writing(
    path: Path, kind: type[DisaggError] = UsageError, fix: str = "name a folder that can be written to"
) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise kind(f"cannot write: {error.strerror or error}", where=str(path), fix=fix) from None


def write_json(path: Path, document: dict[str, Any], *, late: bool = False) -> None:
    """Write a JSON file whole or not at all."""
    write_text(path, json.dumps(document, indent=2) + "\n", late=late)


def write_text(path: Path, text: str, *, late: bool = False) -> None:
    """Write a text file whole or not at all. UsageError where it cannot be written; `late`, once answers are there,
    EvalUndecided."""
    partial = path.with_name(f".{path.name}.partial")
    with _writing(path, EvalUndecided, "make room; `disagg eval show` makes it up again") if late else _writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
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


def read_run(folder: Path) -> tuple[Identity, list[Sample]]:
    """A run and its samples so far; of two with one id the later. UsageError where it is damaged."""
    identity = read_identity(folder)
    samples = _read_samples(folder)
    if strange := {sample.id for sample in samples} - set(identity.ids):
        raise UsageError(
            f"samples of another run: {len(strange)} questions that this run did not ask, such as {min(strange)}",
            where=str(folder / SAMPLES),
        )
    return identity, samples


def _read_samples(folder: Path) -> list[Sample]:
    """A last line that was cut off is left out; a folder whose run was ended before the first answer has none."""
    path = folder / SAMPLES
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UsageError(f"cannot read the samples: {error.strerror}", where=str(path)) from None
    found: dict[str, Sample] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            entry = Sample.from_dict(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise UsageError(
                f"not a sample: {error}",
                where=f"{path}:{number}",
                fix="take the line out; --resume asks its question again",
            ) from None
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


def cut_torn_line(path: Path) -> None:
    """Take off the end of a last line that was cut, so that the next one starts on its own."""
    with _writing(path):
        raw = path.read_bytes()
        whole = raw.rfind(b"\n") + 1
        if whole < len(raw):
            os.truncate(path, whole)
