"""What must never stand in a log, a run record or on screen: values of environment variables whose name says so."""

import re
from collections.abc import Mapping

NAME = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|API_?KEY|PRIVATE_?KEY|ACCESS_?KEY", re.IGNORECASE)
MASK = "***"


def is_secret(name: str) -> bool:
    """Whether a variable of this name holds a secret."""
    return bool(NAME.search(name))


def masked(env: Mapping[str, str]) -> dict[str, str]:
    """The same variables, with the values of secrets masked."""
    return {name: MASK if is_secret(name) else value for name, value in env.items()}


def without(text: str, env: Mapping[str, str]) -> str:
    """A text in which the values of these variables' secrets are masked."""
    for name, value in env.items():
        if is_secret(name) and value:
            text = text.replace(value, MASK)
    return text
