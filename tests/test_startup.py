"""`disagg --help` and `disagg plan` start fast: they import nothing heavy."""

import subprocess
import sys

import pytest

HEAVY = {"torch", "sglang", "scipy", "numpy", "aiohttp", "huggingface_hub", "pydantic", "matplotlib", "asyncio"}

RUN = """
import sys
sys.argv = ["disagg", *sys.argv[1:]]
from disagg_cli.cli.app import main
try:
    main()
except SystemExit:
    pass
print("modules:", *sorted(sys.modules), file=sys.stderr)
"""


@pytest.mark.parametrize(
    "args",
    [
        "--help",
        "--version",
        "plan --help",
        "plan --prefill-tp 4 --decode-tp 1",
        "plan --prefill-tp 4 --decode-tp 1 --json",
    ],
)
def test_nothing_heavy_is_imported(args):
    done = subprocess.run([sys.executable, "-c", RUN, *args.split()], capture_output=True, text=True, timeout=60)
    loaded = done.stderr.rpartition("modules:")[2].split()
    assert "disagg_cli.cli.app" in loaded
    assert HEAVY & set(loaded) == set()
