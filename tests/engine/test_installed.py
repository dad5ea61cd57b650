"""Installed versions, read without importing what is installed."""

import subprocess
import sys

from disagg_cli import __version__
from disagg_cli.engine.installed import PACKAGES, version_of, versions


def test_a_package():
    assert version_of("disagg-cli") == __version__


def test_a_package_that_is_not_there():
    assert version_of("no-such-package-as-this") is None


def test_all_that_decide():
    assert tuple(versions()) == PACKAGES


def test_nothing_is_imported():
    code = "import sys; from disagg_cli.engine.installed import versions; versions(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"sglang", "nixl", "torch", "transformers"} & set(done.stdout.split())
