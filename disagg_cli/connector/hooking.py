"""What the hooks of all modes share. Imported only inside SGLang's processes."""

import sys
from typing import Any


def shown(manager: Any, **changes: Any) -> Any:
    """A KV manager with some attributes changed, sharing all else. Other threads go on with the one that they have."""
    view = object.__new__(type(manager))
    view.__dict__.update(manager.__dict__, **changes)
    return view


def say(line: str) -> None:
    """Write a line to the worker's log.

    Not through logging: SGLang configures it after it has loaded plugins, and the line would be lost.
    """
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
