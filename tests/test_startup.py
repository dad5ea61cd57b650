"""`disagg --help` and `disagg plan` start fast: they import nothing heavy."""

import subprocess
import sys

import pytest

HEAVY = {"torch", "sglang", "scipy", "numpy", "aiohttp", "huggingface_hub", "matplotlib", "asyncio"}

COMMAND = """
import sys
sys.argv = ["disagg", *sys.argv[1:]]
from disagg_cli.cli.app import main
try:
    main()
except SystemExit:
    pass
print("modules:", *sorted(sys.modules), file=sys.stderr)
"""


BEHIND_PLAN = """
import sys
import disagg_cli.console.plan_view, disagg_cli.console.sink, disagg_cli.connector.releases, disagg_cli.kv.models
print("modules:", *sorted(sys.modules), file=sys.stderr)
"""


def loaded(code, *args):
    done = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, timeout=60)
    modules = set(done.stderr.rpartition("modules:")[2].split())
    assert "disagg_cli" in modules, done.stderr
    return modules


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
    assert HEAVY & loaded(COMMAND, *args.split()) == set()


@pytest.mark.parametrize("args", ["--help", "--version"])
def test_help_does_not_import_pydantic(args):
    """Typer 0.29 imports it to parse a command's options, so commands themselves have it."""
    assert "pydantic" not in loaded(COMMAND, args)


def test_the_modules_behind_plan_do_not_import_pydantic():
    assert "pydantic" not in loaded(BEHIND_PLAN)
