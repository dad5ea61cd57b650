"""Stand-in for the CUDA-only package `sgl_kernel`, which cannot be imported without libcuda.so.1.

SGLang imports it unconditionally, also on CPUs; dense models never call it there. Whatever is asked of it exists, and
raises when it is called.
"""

from collections.abc import Callable
from typing import NoReturn


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_args: object, **_kwargs: object) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{name} needs a GPU: this model cannot run on CPUs")

    missing.__name__ = name
    return missing
