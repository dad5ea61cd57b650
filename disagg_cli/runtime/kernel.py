"""What a machine's kernel knows of a death that no log tells."""

from collections.abc import Iterable
from pathlib import Path

from disagg_cli.executors import last_word, segments
from disagg_cli.executors.last_word import Sign
from disagg_cli.executors.procfs import oom_kills
from disagg_cli.runtime import disk

__all__ = ["SHARED_MEMORY", "oom_kills", "signs", "told"]

SHARED_MEMORY = segments.FOLDER


def signs(codes: set[int], kills_before: int, folder: Path) -> frozenset[Sign]:
    """What this machine says of a process that ended with these exit codes.

    kills_before: oom_kills() a few seconds ago. folder: where its log is.
    """
    found: set[Sign] = {"oom_killer"} if oom_kills() > kills_before else set()
    if disk.room(SHARED_MEMORY) < disk.LEAST:
        found.add("shm_full")
    return _fitting(codes, found | _of_log(folder))


def told(codes: set[int], text: str, folder: Path) -> frozenset[Sign]:
    """What another host has said in the log of such a process. What this machine counts is not about it."""
    return _fitting(codes, last_word.told(text) | _of_log(folder))


def _of_log(folder: Path) -> set[Sign]:
    return {"disk_full"} if disk.room(folder) < disk.LEAST else set()


def _fitting(codes: set[int], found: Iterable[Sign]) -> frozenset[Sign]:
    """Those that end a process so."""
    may = {"oom_killer": -9 in codes, "shm_full": -7 in codes, "disk_full": bool(codes - {-9, -15})}
    return frozenset(sign for sign in found if may[sign])
