"""Topologies for the rules: each as small as it can be, and changed in one thing."""

from deployments import SMALLEST

from disagg_cli.findings.finding import Severity
from disagg_cli.topology.machine import Facts, Rail

ERROR, WARNING, NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE

HERE = Facts(installed="0.5.23", packages={"sglang": "0.5.23", "nixl": "1.5.1", "nixl-cu13": "1.5.1"}, torch_cuda=13)
RAILS = (
    Rail(name="mlx5_0", numa=0, gpus=(0,)),
    Rail(name="mlx5_1", numa=1, gpus=(1,)),
    Rail(name="mlx5_2", active=False),
)


def gpus(*hosts, platform="gb200-nvl72", **changes):
    """Prefill TP4 and two decodes TP1 on GB200 nodes."""
    topology = SMALLEST | {
        "platform": platform,
        "model": "Qwen/Qwen3-32B",
        "prefill": {"tp": 4},
        "decode": {"workers": 2},
    }
    return topology | ({"executor": {"ssh": {"hosts": list(hosts)}}} if hosts else {}) | changes


def both(args=None, env=None, sglang=None, **changes):
    """GB200 with flags and environment for both roles."""
    engine = {"args": args or {}, "env": env or {}} | ({"sglang": sglang} if sglang else {})
    return gpus("a", "b", engine=engine, **changes)


def roles(prefill=None, decode=None, sglang="0.5.23", model="Qwen/Qwen3-32B", **changes):
    """GB200, TP4 and TP4, with flags for each role."""
    return gpus(
        *("a", "b"),
        model=model,
        prefill={"tp": 4, "args": prefill or {}},
        decode={"tp": 4, "args": decode or {}},
        engine={"sglang": sglang},
        **changes,
    )


def decode_env(env, sglang="0.5.23", **changes):
    """GB200, TP4 and TP1, with an environment for decode."""
    return gpus("a", "b", decode={"workers": 2, "env": env, **changes}, engine={"sglang": sglang})


def everywhere(env, args=None, tp=1, **changes):
    """GB200, TP4 and `tp`, with the same environment and flags for both roles."""
    return gpus("a", "b", decode={"tp": tp}, engine={"sglang": "0.5.23", "env": env, "args": args or {}}, **changes)


def local(facts=HERE, **changes):
    """Both roles on this machine's H200s."""
    topology = gpus(platform="h200", prefill={"tp": 1}, decode={"tp": 1}, **changes)
    return topology, facts


def evaluated(**gsm8k):
    return gpus("a", "b", eval={"gsm8k": gsm8k})


def tls(prefill, decode):
    """H200, a host for each role, with what UCX may use on each side."""
    return gpus(
        *("a", "b"),
        platform="h200",
        prefill={"tp": 8, "env": {"UCX_TLS": prefill}},
        decode={"tp": 8, "env": {"UCX_TLS": decode}},
    )


BY_BASE = {"select_gpus": "base_gpu_id"}
AR2_OFF = {"SGLANG_OPT_USE_CUSTOM_ALL_REDUCE_V2": "0"}
FORCED = {"SGLANG_DISAGGREGATION_FORCE_QUERY_PREFILL_DP_RANK": "1"}
FP8 = {"kv-cache-dtype": "fp8_e4m3"}
SPEC = {"speculative-algorithm": "EAGLE", "speculative-num-steps": 2}
RADIX = {"disaggregation-decode-enable-radix-cache": True}
STAGING = {"SGLANG_DISAGG_STAGING_BUFFER": "1"}
MNNVL = {"UCX_CUDA_IPC_ENABLE_MNNVL": "y"}
HYBRID = "Qwen/Qwen3.5-397B-A17B"
MLA = "deepseek-ai/DeepSeek-R1"
DEP4 = {"tp": 4, "dp": 4, "dp_attention": True}
