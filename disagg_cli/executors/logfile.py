"""A log that a process writes straight into, kept within bounds, and read by somebody elsewhere as it grows.

Nothing stands between the process and its log that could die or block. Its head can be let go of all the same: punching
a hole (fallocate(2), FALLOC_FL_PUNCH_HOLE) frees the blocks of a stretch of a file and moves nothing, so no line is
lost that is written meanwhile, and everybody's place in the file stays right. The usual copy-and-truncate loses what
is written between the two.

Standard library only, Python 3.8 or later: the ssh executor sends this text to its hosts, with helper.py and keeper.py.
"""

from __future__ import annotations

import ctypes
import errno
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

LEAST = 64 * 1024
"""Bytes. With less than this a disk counts as full: no log can take more than a few lines."""
HEAD = 1 << 20
TAIL = 48 << 20
MOST = 64 << 20
"""Bytes of disk that a log may take; then its first HEAD, how the process started, and its last TAIL are kept."""

_KEEP_SIZE, _PUNCH_HOLE, _BLOCK = 0x01, 0x02, 4096  # linux/falloc.h


def room(folder: Path) -> int:
    """Bytes that this user can still write where the folder is; root may also use what is set aside for it."""
    try:
        found = os.statvfs(str(folder))
    except OSError:
        return LEAST  # it has gone, which is said elsewhere
    return found.f_frsize * (found.f_bfree if os.geteuid() == 0 else found.f_bavail)


def trim(log: Path, *, fetched: int = 0, head: int = HEAD, tail: int = TAIL, most: int = MOST) -> int:
    """Free what was fetched of a log that takes more than `most` bytes of disk, and if need be the middle of the rest.

    Return how many bytes were freed. They read as NUL bytes. Where the file system cannot do that (NFS before 4.2), the
    log begins anew.
    """
    try:
        with log.open("r+b") as file:
            before = os.fstat(file.fileno())
            if before.st_blocks * 512 <= most:
                return 0
            middle = (fetched + head, before.st_size - tail)
            for start, past in ((0, fetched), middle):
                if os.fstat(file.fileno()).st_blocks * 512 > most and not _free(file.fileno(), start, past):
                    file.truncate(0)
            return max(0, before.st_blocks - os.fstat(file.fileno()).st_blocks) * 512
    except OSError:
        return 0


def _free(descriptor: int, start: int, past: int) -> bool:
    """Free the whole blocks of a stretch of a file. Whether that was possible."""
    first, end = -(-start // _BLOCK) * _BLOCK, past // _BLOCK * _BLOCK
    return end <= first or _punch(descriptor, first, end - first)


def _punch(descriptor: int, start: int, length: int) -> bool:
    """Whether a hole could be made. Python's os module knows posix_fallocate only."""
    try:
        fallocate = ctypes.CDLL(None, use_errno=True).fallocate
    except (AttributeError, OSError):
        return False
    fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    return int(fallocate(descriptor, _KEEP_SIZE | _PUNCH_HOLE, start, length)) == 0


def piece(log: Path, start: int, most: int) -> tuple[bytes, int, bool]:
    """What a log has from a place on, at most so many bytes; the place behind it, and whether there is more.

    Where something was freed before it was fetched, a line in its place says how much.
    """
    try:
        with log.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if start > size:
                start = 0  # it was begun anew
            if start == size or most <= 0:
                return b"", start, start < size
            first = _seek(file.fileno(), start, os.SEEK_DATA, size)
            past = _seek(file.fileno(), first, os.SEEK_HOLE, size)
            file.seek(first)
            data = file.read(min(most, past - first))
    except OSError:
        return b"", start, False
    said = b"\ndisagg: %d MiB of this log were dropped before anybody could fetch them\n" % ((first - start) >> 20)
    return (said if first > start else b"") + data, first + len(data), first + len(data) < size


def _seek(descriptor: int, start: int, what: int, size: int) -> int:
    """Where the next data, or the next hole, begins (lseek(2)): at the end where there is none."""
    try:
        return min(size, os.lseek(descriptor, start, what))
    except OSError as error:
        return size if what == os.SEEK_HOLE or error.errno == errno.ENXIO else start
