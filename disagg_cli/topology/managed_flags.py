"""Flags of SGLang, its router and sbatch that disagg sets itself, and the field of the topology that says each."""

import re
from collections.abc import Mapping

# All spellings that SGLang 0.5.6 to 0.5.23 knows for what disagg sets.
ENGINE: Mapping[str, str] = {
    "model-path": "model",
    "model": "model",
    "served-model-name": "model.served_name",
    "host": "executor",
    "port": "ports",
    "nccl-port": "ports",
    "dist-init-addr": "ports",
    "nccl-init-addr": "ports",
    "nnodes": "tp, pp and the platform's GPUs per node",
    "node-rank": "tp, pp and the platform's GPUs per node",
    "tp": "tp",
    "tp-size": "tp",
    "tensor-parallel-size": "tp",
    "dp": "dp",
    "dp-size": "dp",
    "data-parallel-size": "dp",
    "enable-dp-attention": "dp_attention",
    "attn-dp-size": "dp and dp_attention",
    "attention-data-parallel-size": "dp and dp_attention",
    "pp": "pp",
    "pp-size": "pp",
    "pipeline-parallel-size": "pp",
    "base-gpu-id": "place and engine.select_gpus",
    "gpu-id-step": "place and engine.select_gpus",
    "disaggregation-mode": "prefill: and decode:",
    "disaggregation-bootstrap-port": "ports",
}

ROUTER: Mapping[str, str] = {
    "host": "router.host",
    "port": "router.port",
    "policy": "router.policy",
    "prometheus-host": "router.host",
    "prometheus-port": "ports",
    "pd-disaggregation": "prefill: and decode:",
    "prefill": "prefill:",
    "decode": "decode:",
    "worker-urls": "prefill: and decode:",
}


SLURM: Mapping[str, str] = {
    "nodes": "executor.slurm.nodes",
    "N": "executor.slurm.nodes",
    "partition": "executor.slurm.partition",
    "p": "executor.slurm.partition",
    "account": "executor.slurm.account",
    "A": "executor.slurm.account",
    "time": "executor.slurm.time",
    "t": "executor.slurm.time",
    "segment": "executor.slurm.segment",
    "ntasks": "executor.slurm.nodes",
    "n": "executor.slurm.nodes",
    "array": "one launch for each topology",
    "a": "one launch for each topology",
    "wrap": "disagg's own script",
}

SRUN: Mapping[str, str] = {
    **dict.fromkeys(("nodes", "ntasks", "nodelist", "het-group", "overlap", "job-name"), "place"),
    **dict.fromkeys(("input", "output", "error"), "the log of the worker, which is where it is"),
}
OPTION = re.compile(r"[A-Za-z][A-Za-z0-9-]*")


def engine_flag(flag: str) -> str:
    """Return an SGLang flag as SGLang spells it, without dashes in front. ValueError for one that disagg sets."""
    return _own(flag, ENGINE)


def router_flag(flag: str) -> str:
    """Return a router flag as the router spells it. ValueError for one that disagg sets."""
    return _own(flag, ROUTER)


def slurm_option(option: str) -> str:
    """Return an option of sbatch without dashes in front. ValueError for one that disagg sets."""
    return _option(option, SLURM)


def srun_option(option: str) -> str:
    """Return an option of srun without dashes in front. ValueError for one that disagg sets."""
    return _option(option, SRUN)


def _option(option: str, managed: Mapping[str, str]) -> str:
    spelt = _own(option, managed)
    if not OPTION.fullmatch(spelt):
        raise ValueError(f"expected an option such as `qos`, got {option!r}")
    return spelt


def _own(flag: str, managed: Mapping[str, str]) -> str:
    spelt = flag.lstrip("-").replace("_", "-")
    if spelt in managed:
        raise ValueError(f"disagg sets --{spelt}; say it with `{managed[spelt]}`")
    return spelt
