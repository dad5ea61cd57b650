"""The size of a token's KV."""

import pytest

from disagg_cli.errors import UsageError
from disagg_cli.kv.layout import KVLayout


def layout(**changes):
    return KVLayout(**({"name": "m", "total_kv_heads": 8, "num_layers": 64, "head_dim": 128} | changes))


def test_qwen3_32b_keeps_256_kib_per_token():
    assert layout().bytes_per_token == 256 * 1024


def test_fp8_halves_it():
    assert layout(kv_dtype="fp8_e4m3").bytes_per_token == 128 * 1024


@pytest.mark.parametrize("field", ["total_kv_heads", "num_layers", "head_dim"])
def test_sizes_are_positive(field):
    with pytest.raises(UsageError, match=f"{field} must be at least 1, not 0"):
        layout(**{field: 0})


def test_an_unknown_dtype_lists_the_known_ones():
    with pytest.raises(UsageError, match="unknown KV dtype 'int3'") as caught:
        layout(kv_dtype="int3")
    assert "fp8_e4m3" in (caught.value.fix or "")
