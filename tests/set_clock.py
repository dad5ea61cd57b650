"""Python programs whose clock can be set while they run: only root could set the machine's, and everybody would notice.

It is what `time.time()` says. Timers and monotonic clocks go on, as they do when somebody sets the clock of a machine.
(libfaketime 0.9.10 would reach every program, and fails Python's own sleep with EINVAL.)
"""

import time
from pathlib import Path


def by(file: Path) -> None:
    """Set this process's clock: by as many seconds ahead as the file says, from the moment on when it is there."""
    real = time.time

    def now() -> float:
        try:
            return real() + float(file.read_text())
        except (OSError, ValueError):
            return real()

    time.time = now


class Clock:
    """program: the given Python, by this clock, as are the Pythons that it starts."""

    def __init__(self, program: str | Path, folder: Path) -> None:
        """Write the program into a folder."""
        self._file = folder / "clock"
        (site := folder / "site-of-the-clock").mkdir()
        here = str(Path(__file__).parent)
        lines = ["import pathlib, sys", f"sys.path.insert(0, {here!r})", "import set_clock", "del sys.path[0]"]
        (site / "sitecustomize.py").write_text("\n".join([*lines, f"set_clock.by(pathlib.Path({str(self._file)!r}))"]))
        self.program = folder / f"{Path(program).name}-by-a-clock"
        self.program.write_text(f'#!/bin/sh\nexport PYTHONPATH="{site}:$PYTHONPATH"\nexec "{program}" "$@"\n')
        self.program.chmod(0o755)

    def set(self, ahead_s: float) -> None:
        """Let it say so many seconds more than the machine's."""
        self._file.write_text(str(ahead_s))
