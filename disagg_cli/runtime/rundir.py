"""The directory of a run: what was planned, what was started, what happened. Nothing in it is needed to stop a run but
state.json."""

import contextlib
import errno
import json
import os
import re
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs

from disagg_cli.errors import UsageError
from disagg_cli.runtime import disk

HOME = "DISAGG_HOME"
STATE_SCHEMA = "disagg.state/1"
STATE_KEYS = ("name", "url", "phase", "since", "started", "pid", "born", "waiting_for", "exit_code", "reason")
PROCESS_KEYS = ("name", "role", "url", "log", "phase", "since", "pid")
"""What every state.json has had. What came later is read with a default."""
NO_RUN = UsageError("there is no run yet", fix="start one: disagg launch configs/1p2d-cpu.yaml")


@dataclass(frozen=True, slots=True)
class RunDir:
    """Paths of one run, and how its files are written."""

    path: Path

    @property
    def logs(self) -> Path:
        """Folder with one log for each process."""
        return self.path / "logs"

    def log(self, process: str) -> Path:
        """The log of a process."""
        return self.logs / f"{process}.log"

    def write(self, name: str, document: Mapping[str, Any]) -> None:
        """Write a JSON file so that a reader never sees half of it."""
        self.write_text(name, json.dumps(document, indent=2) + "\n")

    def write_text(self, name: str, text: str) -> None:
        """Write a text file so that a reader never sees half of it."""
        handle, draft = tempfile.mkstemp(dir=self.path, prefix=f".{name}-")
        try:
            with os.fdopen(handle, "w") as file:
                file.write(text)
            Path(draft).rename(self.path / name)
        except OSError:
            Path(draft).unlink(missing_ok=True)
            raise

    def read(self, name: str) -> dict[str, Any]:
        """Read a JSON file of the run; empty if it is not there. UsageError if it is damaged."""
        try:
            document = json.loads((self.path / name).read_bytes())
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise self._damaged(name, str(error)) from None
        if not isinstance(document, dict):
            raise self._damaged(name, "it is no document")
        return document

    def state(self) -> dict[str, Any]:
        """What state.json tells; empty if it is not there. UsageError if it is damaged, or of another disagg."""
        state = self.read("state.json")
        if state and state.get("schema") != STATE_SCHEMA:
            raise self._damaged("state.json", f"its schema is {state.get('schema')}, and not {STATE_SCHEMA}")
        if missing := _missing(state) if state else ():
            raise self._damaged("state.json", f"it lacks {', '.join(missing)}")
        return state

    def _damaged(self, name: str, why: str) -> UsageError:
        return UsageError(
            f"{name} of {self.path.name} cannot be read: {why}",
            where=str(self.path / name),
            fix="end by hand what still runs of it, and take its folder away",
        )

    def append(self, name: str, record: Mapping[str, Any]) -> None:
        """Append one line to a JSON-lines file: all of it, or, where the disk is full, nothing of it and OSError."""
        line = json.dumps(record).encode() + b"\n"
        with (self.path / name).open("ab", buffering=0) as file:
            before = file.seek(0, os.SEEK_END)
            if file.write(line) < len(line):
                file.truncate(before)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path / name))


def _missing(state: Mapping[str, Any]) -> list[str]:
    """Keys that are not in a state, and nobody could do without."""
    processes = state.get("processes")
    if not isinstance(processes, list) or not all(isinstance(one, dict) for one in processes):
        return ["processes"]
    lost = [key for key in STATE_KEYS if key not in state]
    return lost + sorted({f"{key} of a process" for key in PROCESS_KEYS for one in processes if key not in one})


def event(line: str | bytes) -> dict[str, Any]:
    """An event by its line of events.jsonl; by a line that is damaged, one that says so."""
    try:
        found = json.loads(line)
    except ValueError:
        found = None
    return found if isinstance(found, dict) and "text" in found else {"text": "(a line of events.jsonl is damaged)"}


def home() -> Path:
    """The folder of all that disagg keeps: $DISAGG_HOME, else the platform's state folder."""
    return Path(os.environ.get(HOME) or platformdirs.user_state_dir("disagg")).absolute()


def cache() -> Path:
    """The folder of what can be made again, such as synthetic models."""
    return home() / "cache" if os.environ.get(HOME) else Path(platformdirs.user_cache_dir("disagg"))


def create(name: str) -> RunDir:
    """Make the folder of a new run, readable by its owner alone, and make it the current one."""
    path = _new_folder(home() / "runs", name)
    (path / "logs").mkdir(mode=0o700)
    _point_current_at(path)
    return RunDir(path)


def create_eval(name: str) -> Path:
    """Make the folder of an eval that belongs to no launch."""
    return _new_folder(home() / "evals", name)


def _new_folder(parent: Path, name: str) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    try:
        parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        for attempt in range(1000):
            path = parent / (f"{name}-{stamp}" if attempt == 0 else f"{name}-{stamp}-{attempt}")
            with contextlib.suppress(FileExistsError):
                path.mkdir(mode=0o700)
                return path
    except OSError as error:
        if disk.is_full(error):
            raise
        raise UsageError(
            f"cannot write to {parent}: {error.strerror}", fix=f"set {HOME} to a folder of yours"
        ) from None
    raise UsageError(f"cannot make a new folder in {parent}")


def current() -> RunDir:
    """The last run that was launched. UsageError if there is none."""
    path = (home() / "current").resolve()
    if not path.is_dir():
        raise NO_RUN
    return RunDir(path)


def find(run: str | None) -> RunDir:
    """The run of this name, the newest of a topology of this name, or the current one. UsageError names what exists."""
    if run is None:
        return current()
    known = {path.name: path for path in sorted((home() / "runs").glob("*"), key=lambda path: path.stat().st_mtime)}
    if run not in known:
        stamped = re.compile(rf"{re.escape(run)}-\d{{8}}-\d{{6}}(-\d+)?")
        if of_topology := [name for name in known if stamped.fullmatch(name)]:
            return RunDir(known[of_topology[-1]])
        newest = ", ".join(list(known)[-5:])
        raise UsageError(f"no run called {run}", fix=f"the newest are: {newest}" if newest else NO_RUN.fix)
    return RunDir(known[run])


@dataclass(frozen=True, kw_only=True, slots=True)
class Serving:
    """A run as its clients see it: where it answers, its workers, and whether their weights are random."""

    url: str
    workers: tuple[str, ...]
    synthetic: bool


def serving() -> Serving:
    """The current run. UsageError if there is no run, or if it does not serve."""
    run = current()
    state = run.state()
    if state.get("phase") not in ("serving", "evaluating"):
        raise UsageError(
            f"the last run does not serve (it is {state.get('phase', 'unknown')})", fix="launch one, or give --url"
        )
    return Serving(
        url=str(state["url"]),
        workers=tuple(one["url"] for one in state.get("processes", ()) if one["role"] in ("prefill", "decode")),
        synthetic=bool(run.read("deployment.json").get("synthetic")),
    )


def _point_current_at(path: Path) -> None:
    draft = home() / f".current-{os.getpid()}"
    draft.unlink(missing_ok=True)
    draft.symlink_to(path)
    try:
        draft.rename(home() / "current")
    except OSError as error:
        draft.unlink()
        raise UsageError(f"cannot point {home() / 'current'} at the run: {error.strerror}", fix="remove it") from None
