"""The environment and the flags that SGLang servers need on CPUs. Pure.

Each line was found by trying (SGLang 0.5.23): without it a server does not start, or answers wrongly, or spins.
"""

from pathlib import Path

ENABLE = "DISAGG_HOST_MEMORY"
"""Environment variable that turns the plugin's host-memory mode on; `disagg` sets it, users need not."""

STAND_INS = Path(__file__).parent / "stand_ins"
PACKAGE = Path(__file__).parents[2]

IMPORT_TIME_ENV = {
    ENABLE: "1",
    "SGLANG_USE_CPU_ENGINE": "1",
    "OMP_NUM_THREADS": "1",
    # With TP > 1 each rank would compile a function of integers at its first request (vocab_parallel_embedding.py):
    # 10 s of CPU and a C++ compiler, 1.6 s where torch has kept the result. Not compiled, it returns the same.
    "TORCHDYNAMO_DISABLE": "1",
    # Spawned schedulers import sgl_kernel before they load plugins, so the stand-in cannot be a hook.
    "PYTHONPATH": str(STAND_INS),
}
"""Read while SGLang is imported: the same for every server that one warm parent forks."""

ARGS: dict[str, str | int | float | bool] = {
    "device": "cpu",
    "attention-backend": "torch_native",
    "disable-overlap-schedule": True,
    "skip-server-warmup": True,
    # Idle ranks must sleep: with more ranks than cores, spinning ones starve the rest (TP4 decode: 120 s against 20 s).
    "sleep-on-idle": True,
    "mem-fraction-static": 0.1,
    "max-total-tokens": 32768,
    # Each has a row as long as the context, and on CPUs all rows are written at the start: 2048 of them are 270 MB.
    "max-running-requests": 64,
    # Prompts of a few hundred tokens then cross a chunk, as long ones do on GPUs.
    "chunked-prefill-size": 512,
    "page-size": 1,
}


def import_time_env(package: str | None) -> dict[str, str]:
    """The same for a machine that has the disagg_cli package in another folder than this one."""
    stand_ins = Path(package or PACKAGE) / STAND_INS.relative_to(PACKAGE)
    return IMPORT_TIME_ENV | {"PYTHONPATH": str(stand_ins)}


DECODE_ARGS: dict[str, str | int | float | bool] = {
    # The default host pool registers its memory with the CUDA runtime.
    "disaggregation-decode-retraction-backup": "cpu_tensor",
}


def environment(*, ranks: int, cores: tuple[int, ...]) -> dict[str, str]:
    """Environment of one server of `ranks` ranks on these cores, beside IMPORT_TIME_ENV.

    SGLang wants one core set per rank and refuses more ranks than NUMA nodes otherwise; ranks share cores in turn.
    """
    return {
        "SGLANG_CPU_OMP_THREADS_BIND": "|".join(str(cores[rank % len(cores)]) for rank in range(ranks)),
        # A starved prefill misses heartbeats; decode would declare it lost (default: 2 misses).
        "SGLANG_DISAGGREGATION_HEARTBEAT_MAX_FAILURE": "100",
        # /health would generate a token and then sleep a second, from the first look on; the proof of readiness
        # generates through every pair anyhow.
        "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false",
    }
