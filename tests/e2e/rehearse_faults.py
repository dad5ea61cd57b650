"""Every planted fault, in rehearsals of the first example with one decode: each must fail, by the proof. Not a test.

    python tests/e2e/rehearse_faults.py [FAULT ...]

Prints a line for each and exits 1 where one passes. About a minute each on two free cores.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

from disagg_cli.connector.faults.catalogue import FAULTS
from disagg_cli.errors import ProbeFailed

CONFIG = Path(__file__).parents[2] / "configs/1p4d-gb200-qwen3-32b.yaml"
SETS = ("decode.workers=1", "probe.timeout_s=40", "ports=24000", "router.port=24900")


def rehearsal(fault: str) -> bool:
    command = [sys.executable, "-m", "disagg_cli", "rehearse", str(CONFIG), "--fault", fault, "--json"]
    begun = time.monotonic()
    done = subprocess.run(
        [*command, *(word for one in SETS for word in ("--set", one))], capture_output=True, text=True
    )
    report = json.loads(done.stdout)
    found = done.returncode == ProbeFailed.exit_code
    seen = report.get("reason") or report.get("what")
    print(f"{fault:<17} {'found' if found else 'MISSED'} ({time.monotonic() - begun:.0f} s): {seen}", flush=True)
    return found


if __name__ == "__main__":
    results = [rehearsal(name) for name in sys.argv[1:] or [fault.name for fault in FAULTS]]
    print(f"{sum(results)} of {len(results)} faults found")
    sys.exit(not all(results))
