"""NIXL's progress thread rests in host-memory mode, whatever NIXL is installed: else every rank takes a core."""

import subprocess
import sys

from launched import ROOT


def test_it_rests():
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests/bench/bench_progress.py")], capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "resting" in done.stdout
