"""Facts kept as YAML beside the code that reads them."""

from pathlib import Path
from typing import Any

import yaml

_Loader: type[yaml.SafeLoader] | type[yaml.CSafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_facts(path: Path) -> Any:
    """Read a packaged YAML file with the fastest safe loader that is installed."""
    return yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
