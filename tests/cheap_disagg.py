"""`disagg` as a process of its own, with cheap servers in place of SGLang: python tests/cheap_disagg.py FOLDER ARGS"""

import sys
from pathlib import Path

from cheap_python import cheap_python

from disagg_cli.cli.app import main

if __name__ == "__main__":
    folder = sys.argv.pop(1)
    sys.executable = str(cheap_python(Path(folder)))
    main()
