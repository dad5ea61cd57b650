"""Everything that SGLang's servers import, imported once, and what must be so before the first of them is forked."""

import contextlib
import gc
import multiprocessing
import os
from importlib import import_module, metadata
from typing import Any

LATE = (
    "sglang.launch_server",
    "sglang.srt.entrypoints.http_server",
    "sglang.srt.entrypoints.openai.serving_responses",
    "sglang.srt.parser.template_manager",
    "sglang.srt.managers.data_parallel_controller",
    "sglang.srt.disaggregation.nixl.conn",
    "sglang.srt.disaggregation.fake.conn",
    "sglang.srt.constrained.xgrammar_backend",
    "sglang.srt.dllm.algorithm",
    "sglang.srt.layers.attention.torch_native_backend",
    "sglang.srt.layers.attention.qsa.config",
    "sglang.srt.mem_cache.rust_tree_core.adapter",
    "sglang.srt.elastic_ep.expert_backup_manager",
    "sglang.srt.multimodal.processors.qwen3_asr",
    "sglang.srt.distributed.device_communicators.all_reduce_utils",
    "sglang.srt.distributed.device_communicators.custom_all_reduce",
    "sglang.srt.distributed.device_communicators.pymscclpp",
    "sglang.srt.distributed.device_communicators.shm_broadcast",
    "sglang.srt.distributed.device_communicators.torch_symm_mem",
    "sglang.srt.weight_cache.daemon",
    "smg_grpc_servicer.sglang.plugin",
    "smg_grpc_servicer.sglang.zmq_plugin",
    "uvicorn.lifespan.on",
    "uvicorn.loops.uvloop",
    "uvicorn.protocols.http.auto",
    "uvicorn.protocols.websockets.auto",
    "anyio._backends._asyncio",
    "sglang_router.launch_router",
)
"""What servers import only when they are about to use it (seen in 0.5.23; one that another release lacks is left out).

Not prometheus_client: it reads its folder for several processes when it is imported, and SGLang sets that late.
"""

APART = frozenset({"disagg", "smg-servicer", "smg-zmq"})
"""Plugins whose hooks have other targets than ours: the two others come with SGLang 0.5.23 (smg-grpc-servicer)."""


def import_sglang() -> None:
    """Import all that servers import, then make `fork` the way in which SGLang starts its ranks."""
    gc.disable()  # it would go through all that there is again and again, for a quarter of the import's time
    import nixl._api  # noqa: F401 - every scheduler rank imports it later
    import numpy as np
    import sglang.srt.models.registry as models

    models.import_model_classes("sglang.srt.models")
    for module in LATE:
        with contextlib.suppress(ImportError):
            import_module(module)
    os.register_at_fork(after_in_child=np.random.seed)  # as `random` does for itself: siblings drew the same numbers
    _keep_fork()
    _apply_hooks()
    gc.collect()
    gc.freeze()  # children would otherwise copy every page that the collector touches
    gc.enable()


def _keep_fork() -> None:
    import torch.multiprocessing

    multiprocessing.set_start_method("fork", force=True)

    def keep_fork(*_args: object, **_kwargs: object) -> None:
        """SGLang forces `spawn` while it starts (entrypoints/engine.py); here that would import everything again."""

    places: tuple[Any, ...] = (multiprocessing, torch.multiprocessing, multiprocessing.context.DefaultContext)
    for place in places:
        place.set_start_method = keep_fork


def _apply_hooks() -> None:
    """Apply the hooks of host-memory mode, which all servers have; they find them applied when they load plugins.

    Each hook makes SGLang go through all modules there are (plugins/hook_registry.py), which takes a server as long as
    much of its own start. Where a plugin is installed whose hooks might meet ours, servers do it all themselves.
    """
    if not {plugin.name for plugin in metadata.entry_points(group="sglang.srt.plugins")} <= APART:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry

    from disagg_cli.connector.host_memory import hooks

    hooks.install()
    HookRegistry.apply_hooks()
    HookRegistry._hooks.clear()  # servers register them again, and say so in their logs
