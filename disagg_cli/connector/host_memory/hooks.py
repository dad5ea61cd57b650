"""What host-memory mode changes inside SGLang and NIXL, through SGLang's HookRegistry (0.5.11 and later)."""

import sys
from collections.abc import Callable
from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from disagg_cli.connector.hooking import say


def install() -> None:
    """Register the hooks of host-memory mode. SGLang applies them after all plugins have run."""
    HookRegistry.register("nixl._api.nixl_agent.__init__", rest_between_looks, HookType.AROUND)
    HookRegistry.register("nixl._api.nixl_agent.__init__", call_vram_dram, HookType.AFTER)
    HookRegistry.register(
        "sglang.srt.distributed.device_communicators.pynccl.PyNcclCommunicator.__init__",
        leave_nccl_out,
        HookType.AROUND,
    )
    HookRegistry.register(
        "sglang.srt.configs.update_config.adjust_config_with_unaligned_cpu_tp",
        keep_gpu_head_layout,
        HookType.AROUND,
    )
    HookRegistry.register(
        "sglang.srt.layers.attention.torch_native_backend.TorchNativeAttnBackend.__init__",
        complete_torch_native,
        HookType.AFTER,
    )
    say(
        "disagg host-memory mode: NIXL VRAM means DRAM, no NCCL, KV heads laid out as on GPUs, "
        "NIXL's progress thread rests"
    )


LOOK_US = 10_000
"""How long NIXL's progress thread waits for an event before it looks anyway. An event wakes it at once."""


def rest_between_looks(original: Callable[..., None], agent: Any, *args: Any, **kwargs: Any) -> None:
    """Let NIXL's progress thread sleep until something happens.

    NIXL 1.5.1 sets `pthrDelay = 0` (`_api.py`), with which each rank's thread takes a whole core for as long as its
    server lives. With more ranks than cores everything else waits for these threads, transfers too.
    """
    bindings = sys.modules[type(agent).__module__].nixlBind
    config = bindings.nixlAgentConfig
    if "pthrDelay" not in vars(config):  # NIXL has changed, or this is one that rests already
        return original(agent, *args, **kwargs)

    class Resting(config):  # type: ignore[misc, valid-type]
        pthrDelay = property(config.pthrDelay.fget, lambda self, _: config.pthrDelay.fset(self, LOOK_US))  # noqa: N815

    bindings.nixlAgentConfig = Resting
    try:
        return original(agent, *args, **kwargs)
    finally:
        bindings.nixlAgentConfig = config


def call_vram_dram(_result: None, agent: Any, *_args: Any, **_kwargs: Any) -> None:
    """Make the NIXL agent take the connector's "VRAM" as host memory.

    The connector must go on believing in VRAM: with its own memory kind set to DRAM it refuses different TP sizes.
    """
    dram = agent.nixl_mems["DRAM"]
    agent.nixl_mems |= {"VRAM": dram, "cuda": dram}


def leave_nccl_out(
    original: Callable[..., None], self: Any, group: Any, device: Any, *args: Any, **kwargs: Any
) -> None:
    """Disable the NCCL communicator on CPUs, where it finds the library and then fails on the device; Gloo serves."""
    import torch
    import torch.distributed

    if torch.device(device).type != "cpu":
        original(self, group, device, *args, **kwargs)
        return
    self.available, self.disabled = False, True
    self.group, self.device = group, torch.device(device)
    self.rank, self.world_size = torch.distributed.get_rank(group), torch.distributed.get_world_size(group)


def keep_gpu_head_layout(original: Callable[..., Any], model_config: Any, load_config: Any, tp_size: int) -> Any:
    """Keep KV heads replicated when TP exceeds them, as on GPUs.

    On CPUs SGLang pads the heads with zeros up to a multiple of TP instead: TP4 with two KV heads would hold
    h0, h1, 0, 0 where GPUs hold h0, h0, h1, h1. The connector would be judged on a layout that no GPU has.
    """
    kv_heads = model_config.get_total_num_kv_heads()
    replicable = kv_heads < tp_size and tp_size % kv_heads == 0
    if not (replicable and model_config.num_attention_heads % tp_size == 0):
        return original(model_config, load_config, tp_size)
    from sglang.srt.configs.update_config import update_config

    for config in (model_config.hf_config, model_config.hf_text_config):
        update_config(config, "original_num_attention_heads", model_config.num_attention_heads)
        update_config(config, "original_total_num_kv_heads", kv_heads)
    return model_config


def complete_torch_native(_result: None, backend: Any, model_runner: Any, *_args: Any, **_kwargs: Any) -> None:
    """Give `torch_native` the two things that MLA and DP attention ask of a backend, and that it has not (0.5.23).

    MLA: SGLang has no rule for this backend and takes Triton's, which gives a prompt's first chunk full keys and values
    (`attention_backend_handler.py`); `torch_native` looks into the cache, where latents are. What is cached is the
    same. DP attention: the length of the requests that fill a batch up (`_pad_inputs_to_size`), 1 as for Triton.
    """
    backend.get_cpu_graph_seq_len_fill_value = lambda: 1
    if model_runner.use_mla_backend:
        from sglang.srt.models.deepseek_common.attention_backend_handler import AttentionBackendRegistry
        from sglang.srt.models.deepseek_common.attention_forward_methods.forward_methods import AttnForwardMethod

        AttentionBackendRegistry.register("torch_native", lambda _attention, _batch: AttnForwardMethod.MLA)
