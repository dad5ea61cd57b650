"""Count the NIXL calls of one request to every decode rank, on the installed SGLang's own code, stock and with overlay.

    python tests/bench/bench_overlay.py

Exits 1 where the overlay makes more calls than stock for a plan that stock gets right, or where one of its plans is
wrong. Calls that prepare descriptor lists are made once for each peer; those that make and post transfers, for each
request.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).parents[1] / "connector" / "overlay_bytes.py"
PER_PEER, PER_REQUEST = ("prep_xfer_dlist",), ("make_prepped_xfer", "initialize_xfer", "transfer")


def run(how: str) -> dict[str, Any]:
    """Every plan's outcome and calls."""
    done = subprocess.run([sys.executable, str(PROGRAM), how], capture_output=True, text=True, check=True, timeout=600)
    return dict(json.loads(done.stdout))


def calls(cell: dict[str, Any], names: tuple[str, ...]) -> int:
    """How many calls of these names a plan took."""
    return sum(cell["calls"].get(name, 0) for name in names)


def main() -> int:
    """Print the table."""
    stock, overlay = run("stock"), run("overlay")
    failed = 0
    print(f"{'P:D:T':<18}{'stock':<18}{'overlay':<10}{'lists (stock, overlay)':<26}{'transfers (stock, overlay)'}")
    for plan, before in stock.items():
        after = overlay[plan]
        counts = [(calls(before, names), calls(after, names)) for names in (PER_PEER, PER_REQUEST)]
        more = before["outcome"] == "ok" and any(b < a for b, a in counts)
        failed += more or after["outcome"] != "ok"
        (lists, transfers), note = ([f"{b}, {a}" for b, a in counts]), "  MORE" if more else ""
        print(f"{plan:<18}{before['outcome']:<18}{after['outcome']:<10}{lists:<26}{transfers}{note}")
    print(f"{len(stock)} plans, {failed} of them wrong or dearer with the overlay")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
