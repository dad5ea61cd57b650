"""A log has a bound, and what is dropped of it costs no line that is being written."""

import subprocess
import sys
import time

from disagg_cli.executors import logfile
from disagg_cli.runtime import disk

KIB, MIB = 1 << 10, 1 << 20
SMALL = {"head": 64 * KIB, "tail": 256 * KIB, "most": MIB}


def write(log, size):
    """Numbered lines of 16 bytes."""
    log.write_text("".join(f"{n:015d}\n" for n in range(size // 16)))


def taken(log):
    return log.stat().st_blocks * 512


def test_a_short_log_is_left_alone(tmp_path):
    write(tmp_path / "log", 512 * KIB)
    assert disk.trim(tmp_path / "log", **SMALL) == 0


def test_the_middle_of_a_long_log_is_dropped(tmp_path):
    """Its beginning says how the process was started, its end what it does."""
    log = tmp_path / "log"
    write(log, 2 * MIB)
    assert disk.trim(log, **SMALL) > MIB
    assert taken(log) <= 400 * KIB
    lines = log.read_bytes().replace(b"\0", b"").decode().split("\n")
    assert lines[0] == f"{0:015d}"
    assert lines[-2] == f"{2 * MIB // 16 - 1:015d}"
    assert log.stat().st_size == 2 * MIB  # so that whoever follows it keeps his place


def test_a_log_that_is_not_there(tmp_path):
    assert disk.trim(tmp_path / "log") == 0


def test_where_no_hole_can_be_made_the_log_begins_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(logfile, "_punch", lambda *_: False)
    log = tmp_path / "log"
    write(log, 2 * MIB)
    assert disk.trim(log, **SMALL) > MIB
    assert log.stat().st_size == 0


def test_no_line_is_lost_that_is_written_meanwhile(tmp_path):
    """A writer in another process, as fast as it can; every line after the first trim must be there, in order."""
    log = tmp_path / "log"
    code = f"""
import os
out = os.open({str(log)!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
for n in range(300_000):
    os.write(out, b"%015d\\n" % n)
"""
    with subprocess.Popen([sys.executable, "-S", "-c", code]) as writer:
        trims = 0
        while writer.poll() is None:
            trims += disk.trim(log, **SMALL) > 0
            time.sleep(0.001)
    assert writer.returncode == 0
    assert trims
    kept = log.read_bytes()
    last = kept[kept.rindex(b"\0") + 1 :].split(b"\n")[1:-1]  # the first one after the hole may be cut
    numbers = [int(line) for line in last]
    assert numbers == list(range(numbers[0], 300_000))
    assert taken(log) < 2 * MIB


def test_how_much_room_there_is(tmp_path):
    assert disk.room(tmp_path) > MIB
    assert disk.room(tmp_path / "gone") == disk.LEAST
