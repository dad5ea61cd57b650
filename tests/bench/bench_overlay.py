"""Count the NIXL calls of one request to every decode rank, on the installed SGLang's own code, stock and with overlay.

    python tests/bench/bench_overlay.py

Exits 1 where the overlay makes more calls than stock for a plan that stock gets right. Calls that prepare descriptor
lists are made once for each peer; those that make and post transfers, for each request.
"""

import json
import subprocess
import sys
from typing import Any

PER_PEER, PER_REQUEST = ("prep_xfer_dlist",), ("make_prepped_xfer", "initialize_xfer", "transfer")

Cells = dict[tuple[object, ...], dict[str, Any]]


def run(*flags: str) -> Cells:
    """What `disagg connector verify` observed, by plan."""
    command = [sys.executable, "-m", "disagg_cli", "connector", "verify", "--json", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    return {_name(cell): cell for cell in json.loads(done.stdout)["cells"]}


def _name(cell: dict[str, Any]) -> tuple[object, ...]:
    sizes = (cell[size] for size in ("layout", "prefill_tp", "prefill_pp", "kv_heads"))
    return (*sizes, *cell["decode_pp"], *cell["decode_tp"])


def calls(cell: dict[str, Any], names: tuple[str, ...]) -> int:
    """How many calls of these names a plan took."""
    return sum((cell["agent_calls"] or {}).get(name, 0) for name in names)


def main() -> int:
    """Print the table."""
    stock, overlay = run(), run("--overlay")
    dearer = 0
    print(f"{'plan':<44}{'stock':<16}{'overlay':<12}{'lists (stock, overlay)':<26}{'transfers (stock, overlay)'}")
    for plan, after in overlay.items():
        before = stock[plan]
        counts = [(calls(before, names), calls(after, names)) for names in (PER_PEER, PER_REQUEST)]
        more = before["observed"] == "ok" and any(b < a for b, a in counts)
        dearer += more
        lists, transfers = (f"{b}, {a}" for b, a in counts)
        decode = "+".join(f"TP{tp}" for tp in after["decode_tp"])
        name = f"{after['layout']}, TP{after['prefill_tp']} -> {decode}, T {after['kv_heads']}"
        note = "  MORE" if more else ""
        print(f"{name:<44}{before['observed']:<16}{after['observed']:<12}{lists:<26}{transfers}{note}")
    print(f"{len(overlay)} plans, {dearer} of them dearer with the overlay")
    return 1 if dearer else 0


if __name__ == "__main__":
    sys.exit(main())
