"""Texts compared whole with a file under tests/golden, which only UPDATE_GOLDEN=1 rewrites."""

import os
from pathlib import Path

FOLDER = Path(__file__).parent / "golden"


def assert_golden(name: str, text: str) -> None:
    """The text is what the file says."""
    if os.environ.get("UPDATE_GOLDEN") == "1":
        (FOLDER / name).write_text(text)
    assert text == (FOLDER / name).read_text(), f"UPDATE_GOLDEN=1 rewrites tests/golden/{name}, if this is meant"
