"""One server without disaggregation: what a decode worker is, without what makes it one."""

import pytest
from deployments import on_cpu, on_gpus

from disagg_cli.engine.aggregated import aggregated_command
from disagg_cli.engine.commands import Machine
from disagg_cli.errors import UsageError

MACHINE = Machine(python="python3", cores=(0, 1))


def command(deployment, **sizes):
    return aggregated_command(deployment, model_path="M", machines=lambda _: MACHINE, **sizes)


def words(*args, **sizes):
    return " ".join(command(*args, **sizes).argv)


def test_it_is_as_large_as_a_decode_worker():
    assert "--tp-size 4" in words(on_cpu(decode={"tp": 4}))
    assert "--disaggregation" not in words(on_cpu(decode={"tp": 4}))


def test_or_of_another_size_with_a_core_for_each_rank():
    one = command(on_cpu(decode={"tp": 4}), tp=1)
    assert "--tp-size 1" in " ".join(one.argv)
    assert one.env["SGLANG_CPU_OMP_THREADS_BIND"] == "0"


def test_flags_stay_but_for_those_of_disaggregation_and_dp_attention():
    args = {"page-size": 64, "disaggregation-decode-polling-interval": 2, "enable-dp-lm-head": True}
    said = words(on_cpu(decode={"tp": 2, "dp": 2, "dp_attention": True, "args": args}))
    assert "--page-size 64" in said
    assert "polling" not in said
    assert "dp" not in said


def test_no_gpu_is_kept_free_for_it():
    with pytest.raises(UsageError, match="no GPU of gb200-nvl72"):
        command(on_gpus())
