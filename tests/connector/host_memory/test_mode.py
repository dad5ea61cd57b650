"""The environment and the flags of servers on CPUs."""

import pytest

from disagg_cli.connector.host_memory import mode


@pytest.mark.parametrize(
    ("ranks", "cores", "bound"), [(1, (0, 1), "0"), (2, (0, 1), "0|1"), (4, (2, 5), "2|5|2|5"), (2, (7,), "7|7")]
)
def test_ranks_take_turns_on_the_cores(ranks, cores, bound):
    assert mode.environment(ranks=ranks, cores=cores)["SGLANG_CPU_OMP_THREADS_BIND"] == bound


def test_the_stand_ins_are_where_the_environment_says():
    assert mode.IMPORT_TIME_ENV["PYTHONPATH"] == str(mode.STAND_INS)
    assert (mode.STAND_INS / "sgl_kernel" / "__init__.py").is_file()


def test_nothing_is_set_twice():
    """One parent reads IMPORT_TIME_ENV once for all; what differs between servers must not be in it."""
    assert not set(mode.IMPORT_TIME_ENV) & set(mode.environment(ranks=1, cores=(0,)))
    assert not set(mode.ARGS) & set(mode.DECODE_ARGS)
