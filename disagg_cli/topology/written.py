"""A topology's values as YAML that can be read again."""

from collections.abc import Callable, Mapping
from typing import Any

import yaml

from disagg_cli.secrets import MASK, is_secret, is_secret_flag

SECRETS: Mapping[str, Callable[[str, object], bool]] = {"env": is_secret, "args": is_secret_flag}
"""Whether what stands below a key of this name is a secret."""


def written_out(values: Mapping[str, Any], *, masked: bool = True) -> str:
    """YAML text of a topology's values. Secrets are masked unless said; what looks like a variable is none any more."""
    return yaml.safe_dump(_plain(values, "", masked=masked), sort_keys=False, width=100, allow_unicode=True)


def _plain(value: Any, inside: str, *, masked: bool) -> Any:
    if isinstance(value, Mapping):
        secret = SECRETS.get(inside) if masked else None
        return {k: MASK if secret and secret(k, item) else _plain(item, k, masked=masked) for k, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, "", masked=masked) for item in value]
    return value.replace("${", "$${") if isinstance(value, str) else value
