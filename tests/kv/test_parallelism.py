"""Attention TP, the size that decides over heads."""

import pytest

from disagg_cli.errors import UsageError
from disagg_cli.kv.parallelism import Parallelism


def test_attention_tp_is_tp():
    assert Parallelism(tp=4).attention_tp == 4


def test_dp_attention_divides_it():
    assert Parallelism(tp=16, dp=4, dp_attention=True).attention_tp == 4


def test_plain_dp_does_not():
    assert Parallelism(tp=4, dp=2).attention_tp == 4


@pytest.mark.parametrize("field", ["tp", "dp", "pp"])
def test_sizes_are_positive(field):
    with pytest.raises(UsageError, match=f"{field} must be at least 1, not 0"):
        Parallelism(**({"tp": 1} | {field: 0}))


def test_dp_must_divide_tp():
    with pytest.raises(UsageError, match="4 is no multiple of 3"):
        Parallelism(tp=4, dp=3, dp_attention=True)
