"""Flags and variables: those of the KV path are passed on, those of GPUs are left out by name."""

import pytest

from disagg_cli.rehearsal.flags import translate_flags, translate_variables
from disagg_cli.topology.flags import flags_of

KV_PATH = {
    "page-size": 64,
    "disable-radix-cache": True,
    "chunked-prefill-size": 1024,
    "max-prefill-tokens": 4096,
    "schedule-policy": "lpm",
    "disaggregation-decode-polling-interval": 2,
    "num-reserved-decode-tokens": 512,
    "load-balance-method": "round_robin",
    "enable-dp-lm-head": True,
    "context-length": 9600,
}


def test_flags_of_the_kv_path_are_passed_on():
    kept, notes = translate_flags(KV_PATH)
    assert kept == KV_PATH
    assert {note.kind for note in notes} == {"as written"}
    assert "--page-size 64" in [note.what for note in notes]
    assert "--disable-radix-cache" in [note.what for note in notes]


@pytest.mark.parametrize(
    ("flag", "why"),
    [
        ("attention-backend", "GPU kernels"),
        ("kv-cache-dtype", "the KV dtype, which is float32 as the model is"),
        ("decode-attention-backend", "GPU kernels"),
        ("cuda-graph-max-bs-decode", "GPU kernels"),
        ("fp8-gemm-backend", "GPU kernels"),
        ("moe-a2a-backend", "experts"),
        ("ep-size", "experts"),
        ("speculative-algorithm", "draft model"),
        ("mem-fraction-static", "memory size"),
        ("trust-remote-code", "the model's files"),
        ("disaggregation-ib-device", "devices"),
        ("base-gpu-id", "devices"),
    ],
)
def test_flags_of_gpus_are_left_out_by_name(flag, why):
    kept, (note,) = translate_flags({flag: "x"})
    assert kept == {}
    assert (note.kind, note.what) == ("not covered", f"--{flag}")
    assert note.why.startswith(why)


@pytest.mark.parametrize(
    ("flag", "value", "smaller"),
    [
        ("chunked-prefill-size", 131072, 512),
        ("chunked-prefill-size", -1, -1),
        ("max-running-requests", 8192, 64),
        ("max-running-requests", 16, 16),
        ("context-length", 131072, 32768),
    ],
)
def test_sizes_that_a_small_machine_can_rehearse(flag, value, smaller):
    kept, (note,) = translate_flags({flag: value})
    assert kept == {flag: smaller}
    assert note.kind == ("as written" if smaller == value else "reduced")


def test_no_flag_of_disaggregation_is_left_out_but_the_devices():
    known = {flag for flag in flags_of("0.5.23").known if flag.startswith("disaggregation-")}
    kept, _ = translate_flags(dict.fromkeys(known, "x"))
    assert known - set(kept) == {"disaggregation-ib-device"}


def test_variables():
    kept, notes = translate_variables(
        {
            "SGLANG_DISAGGREGATION_WAITING_TIMEOUT": "60",
            "SGLANG_DISAGG_STAGING_BUFFER": "1",
            "UCX_NET_DEVICES": "mlx5_0:1",
            "SGLANG_ENABLE_JIT_DEEPGEMM": "0",
            "HF_TOKEN": "secret",
            "SGLANG_API_KEY": "secret",
            "SGLANG_INIT_NEW_TOKEN_RATIO": "0.7",
        }
    )
    assert kept == {"SGLANG_DISAGGREGATION_WAITING_TIMEOUT": "60", "SGLANG_INIT_NEW_TOKEN_RATIO": "0.7"}
    whys = {note.what: note.why for note in notes}
    assert "CUDA and XPU devices only" in whys["SGLANG_DISAGG_STAGING_BUFFER"]
    assert whys["UCX_NET_DEVICES"] == "RDMA transport"
    assert "secret" not in str(notes)
