"""The key that servers ask of their clients: in each request of disagg's own, in no file, and on no command line."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from disagg_cli.errors import UsageError

VARIABLE = "DISAGG_API_KEY"
"""Environment variable that holds the key of servers which this process has not launched itself."""

_launched: ContextVar[str | None] = ContextVar("the key of the deployment that is being launched", default=None)


def api_key_header() -> dict[str, str]:
    """What a request has to have in its head: of the deployment that is being launched, else of $DISAGG_API_KEY."""
    if key := _launched.get():
        return {"Authorization": f"Bearer {key}"}
    key = os.environ.get(VARIABLE, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise UsageError(f"{VARIABLE} holds what no HTTP header can carry", fix="set it to the key alone")
    return {"Authorization": f"Bearer {key}"} if key else {}


@contextmanager
def sending(key: str | None) -> Iterator[None]:
    """Send this key with every request that is made in the body, and in tasks that are begun there."""
    before = _launched.set(key)
    try:
        yield
    finally:
        _launched.reset(before)
