"""`disagg` as a process of its own, with cheap servers in place of SGLang: python tests/cheap_disagg.py FOLDER ARGS

A file FOLDER/clock sets its clock: by so many seconds it goes ahead, from the moment on when the file is there.
"""

import sys
import time
from pathlib import Path

from cheap_python import cheap_python

from disagg_cli.cli.app import main


def set_clock_by(file: Path) -> None:
    """Only root could set the clock of the machine, and everybody would notice."""
    real = time.time

    def now() -> float:
        try:
            return real() + float(file.read_text())
        except OSError:
            return real()

    time.time = now


if __name__ == "__main__":
    folder = Path(sys.argv.pop(1))
    sys.executable = str(cheap_python(folder))
    set_clock_by(folder / "clock")
    main()
