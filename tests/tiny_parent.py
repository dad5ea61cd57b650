"""The real warm parent, with tiny programs in place of SGLang and its router: argv[0] is Python to run.

python tests/tiny_parent.py SOCKET [TTL]

In place of SGLang it imports `tiny_import`, where there is such a module, and reads TINY_IMPORT.
"""

import contextlib
import os
from importlib import import_module

from disagg_cli.connector.host_memory import warm_parent


def import_little() -> None:
    """Import something, and read something of the environment."""
    os.environ.get("TINY_IMPORT")
    with contextlib.suppress(ImportError):
        import_module("tiny_import")


def run_python(argv: list[str]) -> None:
    """Be a server whose whole command line is its program."""
    exec(argv[0], {"__name__": "__main__"})


if __name__ == "__main__":
    warm_parent.import_sglang = import_little
    warm_parent.MODULES = dict.fromkeys(warm_parent.MODULES, run_python)
    warm_parent.main()
