"""Logs of processes, read as they grow, and the lines of them that say something."""

import contextlib
import re
from pathlib import Path

LOADING = re.compile(rb"Init torch distributed begin|Load weight begin")
CRASH = re.compile(rb"Subprocess \S+ \(pid=\d+\) crashed[^\n]{0,60}|SIGQUIT received|Received sigquit from a child")
"""Lines of SGLang's log (0.5.23: utils/watchdog.py; managers/tokenizer_manager.py, where another rank notices)."""
DEAF = re.compile(rb"\[Errno \d+\] error while attempting to bind on address[^\n]{0,120}")
"""Python's asyncio, from which uvicorn's servers do not recover. SGLang then waits for its own warm-up for 10 s."""

MOST_AT_ONCE = 1 << 20
MOST_TAIL = 64 * 1024
WIDEST = 200
KEPT_OF_A_LINE = 4096

STEERING = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?")
"""What colours a terminal, clears it or names its window (ECMA-48: control sequences and operating system commands)."""

NOISE = re.compile(
    r"^\s*[\^~]+\s*$"  # under a line of a traceback
    r"|^\s+(\[-|\{\S+,|--)|^usage: "  # argparse repeats all its flags before it says what is wrong
    r"|server_args="  # some 600 of them in one line of 20 kB (entrypoints/engine.py)
    r"|^\s*warnings\.warn\(|kill_process_tree called"
    r'|"(GET|POST) /\S* HTTP/1\.\d" 200'  # uvicorn, for each request
)


class Log:
    """A log that grows: what SGLang says of itself in it, each line read once.

    loading: it has begun to load weights. dying: why it is going to die, in words: a rank has died, of which SGLang
    takes up to a minute to die itself, or it cannot listen.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.loading = False
        self.dying = ""
        self._place = size(path)
        self._unfinished = b""

    def look(self) -> None:
        """Read what is new, of a flood only the end."""
        end = size(self.path)
        if end == self._place:
            return
        if end < self._place:
            self._place, self._unfinished = 0, b""  # it was begun anew
        start = max(self._place, end - MOST_AT_ONCE)
        new = self._unfinished + read(self.path, start, end - start)
        self._place, self._unfinished = end, new[new.rfind(b"\n") + 1 :][-KEPT_OF_A_LINE:]
        self.loading = self.loading or bool(LOADING.search(new))
        for sign, words in ((CRASH, "one of its ranks failed"), (DEAF, "it cannot listen")):
            if found := sign.findall(new):
                self.dying = f"{words} ({str(found[-1], errors='replace')})"


def keep_older(log: Path) -> None:
    """Put the log of a process that is to be started again aside: `prefill-0.log` becomes `prefill-0.log.1`."""
    with contextlib.suppress(FileNotFoundError):
        if not log.stat().st_size:
            return
        number = 1 + sum(1 for _ in log.parent.glob(f"{log.name}.*"))
        log.rename(log.with_name(f"{log.name}.{number}"))


def tail(log: Path, lines: int = 8) -> str:
    """The last lines of a log that say something, each cut to what fits a screen."""
    return "\n".join(last_lines(last_text(log), lines)) or "(the log is empty)"


def last_text(log: Path, most: int = MOST_TAIL) -> str:
    """The end of a log, at most so many bytes, without what was freed of it."""
    return text_since(log, size(log) - most)


def both_ends(log: Path, most: int) -> str:
    """A whole log, or at most so many bytes of its beginning, and as many of its end."""
    end = last_text(log, most)
    beginning = read(log, 0, min(most, max(0, size(log) - most)))
    return str(beginning, errors="replace").replace("\0", "") + end


def text_since(log: Path, mark: int) -> str:
    """A log from this byte on, without what was freed of it; all of a log that has become shorter than that."""
    start = mark if 0 < mark <= size(log) else 0
    return str(read(log, start, size(log) - start), errors="replace").replace("\0", "")


def last_lines(text: str, most: int) -> list[str]:
    """The last lines that say something: no requests, no list of a hundred settings, none twice in a row."""
    kept: list[str] = []
    for line in reversed(text.splitlines()):
        plain = _plain(line)
        shown = _cut(plain.rstrip())
        if shown and not NOISE.search(plain) and shown not in kept[-1:]:
            kept.append(shown)
            if len(kept) == most:
                break
    return kept[::-1]


def indented(text: str) -> str:
    """Set a quotation off."""
    return "\n".join(f"  | {line}" for line in text.splitlines())


def read(path: Path, start: int, length: int) -> bytes:
    """A stretch of a file; empty where it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read(length)
    except OSError:
        return b""


def _plain(line: str) -> str:
    """A line without what would steer the terminal that it is shown on."""
    plain = STEERING.sub("", line).expandtabs()
    return plain if plain.isprintable() else "".join(one for one in plain if one.isprintable())


def _cut(line: str) -> str:
    return line if len(line) <= WIDEST else f"{line[:WIDEST]} ... ({len(line):,} characters)"


def size(path: Path) -> int:
    """How long a file is; 0 where there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0
