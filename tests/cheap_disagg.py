"""`disagg` as a process of its own, with cheap servers in place of SGLang: python tests/cheap_disagg.py FOLDER ARGS

A file FOLDER/clock sets its clock: by so many seconds it goes ahead, from the moment on when the file is there.
"""

import sys
from pathlib import Path

import set_clock
from cheap_python import cheap_python

from disagg_cli.cli.app import main

if __name__ == "__main__":
    folder = Path(sys.argv.pop(1))
    sys.executable = str(cheap_python(folder))
    set_clock.by(folder / "clock")
    main()
