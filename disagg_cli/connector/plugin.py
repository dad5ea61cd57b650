"""The door that SGLang opens (entry point `sglang.srt.plugins`, SGLang 0.5.11 and later).

Installed beside SGLang, this runs in every SGLang process, also in those that disagg did not start: it must cost
nothing and change nothing unless the environment asks.
"""


def register() -> None:
    """Install the modes that the environment asks for."""
