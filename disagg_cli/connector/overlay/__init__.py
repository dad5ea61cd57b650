"""The fixed connector: what stock SGLang gets wrong between different TP sizes, put right through its plugin door.

view.py    how a decode rank must look to the stock arithmetic for it to come out right; pure
hooks.py   the hooks that show it that way; imported only where `launch` asks for the overlay

What it repairs, and in which releases, is in connector/repairs.py.
"""

ENABLE = "DISAGG_OVERLAY"
"""Environment variable that loads the overlay; `disagg` sets it for prefill workers where the plan counts on it."""

PREFIX = "disagg overlay: "
LOADED = f"{PREFIX}loaded"
REFUSED = f"{PREFIX}refused"
"""How the line begins that each process of a worker writes to its log."""
