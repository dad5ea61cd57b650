"""Where a model's KV layout comes from: the packaged facts, a config.json on disk, or one from the Hugging Face hub."""

import json
import os
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from disagg_cli.errors import UsageError
from disagg_cli.facts import read_facts
from disagg_cli.kv.layout import KVLayout
from disagg_cli.kv.model_config import layout_from_config

__all__ = ["DEFAULT_MODEL", "layout_for", "layout_from_config", "packaged_layout", "packaged_models"]

DEFAULT_MODEL = "Qwen/Qwen3-32B"
"""The model of sglang #22145, whose 1P4D topology on GB200 is this project's first example."""

FIX = "a folder or file with its config.json, a hub id such as Qwen/Qwen3-32B, or a name from `disagg models`"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


@cache
def packaged_models() -> Mapping[str, Mapping[str, Any]]:
    """The facts of models.yaml: each model's `config` and `source`, by hub id."""
    facts: Mapping[str, Mapping[str, Any]] = read_facts(Path(__file__).with_name("models.yaml"))
    return facts


def packaged_layout(name: str) -> KVLayout | None:
    """A packaged model's layout, by hub id in any case; None where there is none."""
    known = _packaged(name)
    if known is None:
        return None
    fact = packaged_models()[known]
    return layout_from_config(fact["config"], name=known, source=fact["source"])


def _packaged(name: str) -> str | None:
    return next((known for known in packaged_models() if known.lower() == name.lower()), None)


def layout_for(model: str, *, download: Callable[[str], Path] | None = None) -> KVLayout:
    """Find a model's layout: a packaged name, a folder with a config.json or the path of one, or a hub id.

    A hub id's config.json is fetched once and then comes from the Hugging Face cache; `download` does that.
    Raises UsageError where there is none, or where the file cannot be read; UnsupportedLayout where the cache is not
    modelled.
    """
    config, name, source = config_for(model, download=download)
    return layout_from_config(config, name=name, source=source)


def config_for(model: str, *, download: Callable[[str], Path] | None = None) -> tuple[Mapping[str, Any], str, str]:
    """A model's config, its name and where the config comes from, as `layout_for` finds them."""
    known = _packaged(model)
    if known is not None:
        fact = packaged_models()[known]
        return fact["config"], known, fact["source"]
    path = local_path(model)
    if path and path.is_dir():
        path /= "config.json"
    if path and path.is_file():
        return _read_config(path), path.parent.name or model, str(path)
    if not _HUB_ID.fullmatch(model):
        raise UsageError(f"no KV layout for model {model[:80]!r}", fix=FIX)
    if download is None:
        from disagg_cli.kv.hub import download_config

        download = download_config
    return _read_config(download(model)), model, f"https://huggingface.co/{model}"


def local_path(model: str) -> Path | None:
    """What a model's name is on this machine's disk; None where there is nothing of that name, or it cannot be one."""
    try:
        path = Path(model).expanduser()
        return path if path.exists() else None
    except (OSError, RuntimeError, ValueError):  # too long, a home that nobody has, a NUL
        return None


def cached_config(model: str) -> Path | None:
    """A hub model's config.json in the Hugging Face cache, of the newest snapshot; None where there is none.

    The cache's layout: huggingface_hub, "Understand caching". Looked up by hand, for importing it takes a second.
    """
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache/huggingface")
    hub = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    found = sorted(hub.glob(f"models--{model.replace('/', '--')}/snapshots/*/config.json"), key=_when)
    return found[-1] if found else None


def _when(path: Path) -> float:
    return path.parent.stat().st_mtime


MOST_CONFIG_BYTES = 4 << 20
"""The largest config.json seen on the hub has a tenth of this."""


def _read_config(path: Path) -> Mapping[str, Any]:
    try:
        if (size := path.stat().st_size) > MOST_CONFIG_BYTES:
            raise UsageError(
                f"the model's config has {size:,} bytes, and {MOST_CONFIG_BYTES:,} at most", where=str(path)
            )
        config = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise UsageError("cannot read the model's config: nested too deep", where=str(path)) from None
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read the model's config: {error}", where=str(path)) from error
    if not isinstance(config, dict):
        raise UsageError("the model's config is not a JSON object", where=str(path))
    return config
