"""Programs whose clock can be set while they run: libfaketime stands between them, and all that they start, and time().

Timers and monotonic clocks go on, as they do when somebody sets the clock of a machine.
"""

from pathlib import Path

import debian

LIBRARY = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")


class Clock:
    """program: the given one, by this clock."""

    def __init__(self, program: Path, folder: Path) -> None:
        """Write the program into a folder. debian.NotInstalled where there is no libfaketime."""
        if not LIBRARY.exists():
            debian.install("libfaketime")
        self._file = folder / "clock"
        self.set(0)
        by_it = f"LD_PRELOAD={LIBRARY} FAKETIME_TIMESTAMP_FILE={self._file} FAKETIME_NO_CACHE=1"
        by_it += " FAKETIME_DONT_FAKE_MONOTONIC=1 FAKETIME_DONT_RESET=1"
        self.program = folder / f"{program.name}-by-a-clock"
        self.program.write_text(f'#!/bin/sh\nexport {by_it}\nexec "{program}" "$@"\n')
        self.program.chmod(0o755)

    def set(self, ahead_s: int) -> None:
        """Let it say so many seconds more than the machine's."""
        self._file.write_text(f"{ahead_s:+d}\n")
