"""The door that SGLang opens (entry point `sglang.srt.plugins`, SGLang 0.5.11 and later).

Installed beside SGLang, this runs in every SGLang process, also in those that disagg did not start: it must cost
nothing and change nothing unless the environment asks.
"""

import os
from importlib import import_module

MODES = {
    "DISAGG_HOST_MEMORY": "disagg_cli.connector.host_memory.hooks",
    "DISAGG_OVERLAY": "disagg_cli.connector.overlay.hooks",
    "DISAGG_WITNESS": "disagg_cli.connector.witness.hooks",
    "DISAGG_FAULT": "disagg_cli.connector.faults.hooks",
}
"""Environment variable -> module whose `install` registers the hooks of a mode."""


def register() -> None:
    """Install the modes that the environment asks for."""
    for variable, module in MODES.items():
        if os.environ.get(variable, "") not in ("", "0"):
            import_module(module).install()
