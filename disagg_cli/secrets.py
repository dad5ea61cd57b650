"""What must never stand in a log, a run record or on screen: values that a name or their form says to be secrets."""

import re
from collections.abc import Mapping

NAME = re.compile(
    r"TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|API_?KEY|PRIVATE_?KEY|ACCESS_?KEY|_(PWD|PAT|AUTH)$",
    re.IGNORECASE,
)
FLAG = re.compile(
    r"(^|-)(api-keys?|password|secret|private-key|(?<!per-)(?<!first-)token|watermark-config|(db|redis)-url)$"
)
"""Flags of SGLang and its router that take a secret, or a URL with one; --max-total-tokens does not."""
PASSWORD_IN_URL = re.compile(r"://[^/\s:@]*:[^/\s@]+@")
MASK = "***"


def is_secret(name: str, value: object = "") -> bool:
    """Whether a variable holds a secret: its name says so, or its value is a URL with a password, as of a proxy."""
    return bool(NAME.search(name) or PASSWORD_IN_URL.search(str(value)))


def masked(env: Mapping[str, str]) -> dict[str, str]:
    """The same variables, with the values of secrets masked."""
    return {name: MASK if is_secret(name, value) else value for name, value in env.items()}


def is_secret_flag(flag: str, value: object = "") -> bool:
    """Whether a flag, with or without its dashes, takes a secret by its name, or has a URL with a password."""
    return bool(FLAG.search(flag.lstrip("-").replace("_", "-")) or PASSWORD_IN_URL.search(str(value)))


def masked_flags(args: Mapping[str, object]) -> dict[str, object]:
    """The same flags, with the values of secret ones masked."""
    return {flag: MASK if is_secret_flag(flag, value) else value for flag, value in args.items()}


def without(text: str, env: Mapping[str, str]) -> str:
    """A text in which the values of these variables' secrets are masked."""
    for name, value in env.items():
        if is_secret(name, value) and value:
            text = text.replace(value, MASK)
    return text
