"""The door that SGLang opens (entry point `sglang.srt.plugins`, SGLang 0.5.11 and later).

Installed beside SGLang, this runs in every SGLang process, also in those that disagg did not start: it must cost
nothing and change nothing unless the environment asks.
"""

import os


def register() -> None:
    """Install the modes that the environment asks for."""
    if os.environ.get("DISAGG_HOST_MEMORY") == "1":
        from disagg_cli.connector.host_memory import hooks

        hooks.install()
    if os.environ.get("DISAGG_OVERLAY") == "1":
        from disagg_cli.connector.overlay import hooks as overlay

        overlay.install()
