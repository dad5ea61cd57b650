"""The real warm parent, with tiny programs in place of SGLang and its router: argv[0] is Python to run.

python tests/tiny_parent.py SOCKET
"""

from disagg_cli.connector.host_memory import warm_parent


def run_python(argv: list[str]) -> None:
    """Be a server whose whole command line is its program."""
    exec(argv[0], {"__name__": "__main__"})


if __name__ == "__main__":
    warm_parent.import_sglang = lambda: None
    warm_parent.MODULES = dict.fromkeys(warm_parent.MODULES, run_python)
    warm_parent.main()
