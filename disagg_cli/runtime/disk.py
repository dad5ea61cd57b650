"""How much room there is for logs and records, and how to give back what old lines of a log take.

A worker writes straight into its log, so that nothing stands between them that could die or block. Its head can be
let go of all the same: punching a hole (fallocate(2), FALLOC_FL_PUNCH_HOLE) frees the blocks of a stretch of a file
and moves nothing, so no line is lost that is written meanwhile, and everybody's place in the file stays right. The
usual copy-and-truncate loses what is written between the two.
"""

import ctypes
import errno
import os
from pathlib import Path

from disagg_cli.errors import LaunchFailed

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
        found = os.statvfs(folder)
    except OSError:
        return LEAST  # it has gone, which is said elsewhere
    return found.f_frsize * (found.f_bfree if os.geteuid() == 0 else found.f_bavail)


def is_full(error: OSError) -> bool:
    """Whether something could not be written because the disk, or the user's share of it, is full."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def no_room(folder: Path, error: OSError) -> LaunchFailed:
    """What to say where a launch cannot go on for that."""
    fix = "make room, or set DISAGG_HOME to a folder on a larger disk"
    return LaunchFailed(f"disk full: {error.strerror}", where=str(error.filename or folder), fix=fix)


def trim(log: Path, *, head: int = HEAD, tail: int = TAIL, most: int = MOST) -> int:
    """Free the middle of a log that takes more than `most` bytes of disk. Return how many bytes were freed.

    What is freed reads as NUL bytes. Where the file system cannot do that (NFS before 4.2), the log begins anew.
    """
    try:
        with log.open("r+b") as file:
            found = os.fstat(file.fileno())
            if found.st_blocks * 512 <= most:
                return 0
            end = (found.st_size - tail) // _BLOCK * _BLOCK
            if end <= head:
                return 0
            if not _punch(file.fileno(), head, end - head):
                file.truncate(0)
            return max(0, found.st_blocks - os.fstat(file.fileno()).st_blocks) * 512
    except OSError:
        return 0


def _punch(descriptor: int, start: int, length: int) -> bool:
    """Whether a hole could be made. Python's os module knows posix_fallocate only."""
    try:
        fallocate = ctypes.CDLL(None, use_errno=True).fallocate
    except (AttributeError, OSError):
        return False
    fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    return int(fallocate(descriptor, _KEEP_SIZE | _PUNCH_HOLE, start, length)) == 0
