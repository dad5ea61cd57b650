"""The installed SGLang's NIXL connector, imported where no GPU is.

SGLang 0.5.6 to 0.5.23 can be driven (sides.py). A release that lacks something that is called or set there is not
judged: `ConnectorChanged` says what is gone.
"""

import inspect
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from disagg_cli.connector.host_memory.mode import ENABLE, IMPORT_TIME_ENV, STAND_INS
from disagg_cli.errors import UsageError
from disagg_cli.kv.layout import KVLayout, LayoutKind


class ConnectorChanged(Exception):
    """The installed connector lacks something that the conformance run calls."""


@dataclass(frozen=True, slots=True)
class Installed:
    """The modules of the installed connector: NIXL's, the base classes', what both backends share, prefill's."""

    nixl: ModuleType
    base: ModuleType
    common: ModuleType
    prefill: ModuleType

    @property
    def compares_pages(self) -> bool:
        """Whether decode compares page sizes before it maps ranks for a request (0.5.8 and 0.5.9)."""
        return "prefill_page_size" in self.common.CommonKVReceiver.__init__.__code__.co_names

    @property
    def lists_components(self) -> bool:
        """Whether a model may have several kinds of extra state (since 0.5.12)."""
        return hasattr(self.base, "StateType")

    @property
    def maps_ranks_once(self) -> bool:
        """Whether decode maps ranks once per prefill (since 0.5.10), and not for each request."""
        return hasattr(self.nixl.NixlKVManager, "_resolve_rank_mapping")


@dataclass(frozen=True, kw_only=True, slots=True)
class Worker:
    """How one side is divided, and the layout that it serves."""

    layout: KVLayout
    tp: int
    pp: int

    @property
    def latent_hybrid(self) -> bool:
        """Whether it is a hybrid whose attention layers keep a latent."""
        return self.layout.latent and self.layout.kind is LayoutKind.HYBRID


def import_connector(*, overlay: bool = False) -> Installed:
    """Import SGLang's NIXL connector; where no GPU is, a stand-in replaces `sgl_kernel`.

    With the overlay, load it as a worker does. Raises UsageError where SGLang is not installed, or cannot be imported.
    """
    for name, value in IMPORT_TIME_ENV.items():
        if name not in (ENABLE, "PYTHONPATH"):
            os.environ.setdefault(name, value)
    os.environ["SGLANG_PLUGINS"] = ""
    sys.path.insert(0, str(STAND_INS))
    warnings.simplefilter("ignore")  # SGLang and torch warn by the dozen where no GPU is
    try:
        import sglang.srt.disaggregation.base.conn as base
        import sglang.srt.disaggregation.common.conn as common
        import sglang.srt.disaggregation.nixl.conn as nixl
        import sglang.srt.disaggregation.prefill as prefill
    except ImportError as error:
        raise UsageError(
            f"cannot import SGLang's NIXL connector: {error}", fix="pip install 'disagg-cli[engine]'"
        ) from error
    finally:
        sys.path.remove(str(STAND_INS))
    if overlay:
        _load_overlay()
    return Installed(nixl, base, common, prefill)


def _load_overlay() -> None:
    try:
        from sglang.srt.plugins.hook_registry import HookRegistry
    except ImportError as error:
        raise UsageError(
            "this SGLang has no door for plugins, so no overlay can be loaded", fix="install SGLang 0.5.11 or later"
        ) from error
    from disagg_cli.connector.overlay import hooks

    if not hooks.install():
        raise UsageError("the overlay does not fit this SGLang", fix="install a release that `disagg` knows")
    HookRegistry.apply_hooks()


def known(function: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the values that this release's function takes. Raises ConnectorChanged where it wants others."""
    parameters = inspect.signature(function).parameters
    missing = [
        name for name, parameter in parameters.items() if parameter.default is parameter.empty and name not in values
    ]
    if missing:
        raise ConnectorChanged(f"{getattr(function, '__qualname__', function)} wants {', '.join(missing)}")
    return {name: value for name, value in values.items() if name in parameters}


@contextmanager
def changes_named() -> Iterator[None]:
    """Turn a missing attribute of our stand-in objects into ConnectorChanged."""
    try:
        yield
    except AttributeError as error:
        raise ConnectorChanged(str(error)) from error
