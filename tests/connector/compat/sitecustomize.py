"""Make an old SGLang importable beside newer libraries and no GPU. Only on the path of `make verify-releases`.

What is put in place here is never called by a run on recorded memory.
"""

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from unittest.mock import MagicMock


class _StandIn(Loader, MetaPathFinder):
    """Any submodule of `sgl_kernel`: kernels that a run on recorded memory never calls."""

    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self) if name.startswith("sgl_kernel.") else None

    def create_module(self, spec):
        made = ModuleType(spec.name)
        made.__path__ = []
        made.__getattr__ = lambda name: MagicMock() if not name.startswith("__") else _raise(name)
        return made

    def exec_module(self, module):
        pass


def _raise(name):
    raise AttributeError(name)


sys.meta_path.append(_StandIn())

try:
    from transformers import AutoConfig
except ImportError:
    pass
else:
    _register = AutoConfig.register
    AutoConfig.register = staticmethod(lambda *args, **kwargs: _register(*args, **{**kwargs, "exist_ok": True}))
