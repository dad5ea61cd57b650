"""The plugin runs in every SGLang process where disagg is installed: it must cost nothing unless it is asked."""

import os
import subprocess
import sys
from importlib import metadata

import pytest

from disagg_cli.connector.host_memory import mode
from disagg_cli.connector.plugin import MODES, register

REGISTER = """
import sys
from disagg_cli.connector.plugin import register
register()
print(*sys.modules)
"""


def imported(**env):
    """The modules that are there after register()."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("DISAGG")}
    done = subprocess.run(
        [sys.executable, "-c", REGISTER], capture_output=True, text=True, check=True, timeout=60, env=clean | env
    )
    return set(done.stdout.split())


@pytest.mark.parametrize("value", [None, "", "0"], ids=["unset", "empty", "zero"])
def test_nothing_is_imported_unasked(value):
    modules = imported(**({} if value is None else dict.fromkeys(MODES, value)))
    assert not {"torch", "sglang", "nixl", *MODES.values()} & modules
    assert {name for name in modules if name.startswith("disagg_cli")} == {
        "disagg_cli",
        "disagg_cli.connector",
        "disagg_cli.connector.plugin",
    }


def test_the_mode_that_launch_asks_for_is_known():
    assert MODES[mode.ENABLE] == "disagg_cli.connector.host_memory.hooks"


def test_sglang_finds_it():
    (entry,) = (e for e in metadata.entry_points(group="sglang.srt.plugins") if e.name == "disagg")
    assert entry.load() is register
