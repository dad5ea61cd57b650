"""The plan against the head slicing of the SGLang that is installed, run outside SGLang."""

import ast
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import pytest

from disagg_cli.kv.heads import loadable
from disagg_cli.kv.layout import KVLayout
from disagg_cli.kv.parallelism import Parallelism
from disagg_cli.kv.plan import plan_slices

POWERS = (1, 2, 4, 8, 16)
GRID = [(p, d, t) for p, d, t in (*product(POWERS, POWERS, (*POWERS, 32)), (3, 1, 6), (6, 2, 12), (1, 6, 3)) if p != d]


@pytest.fixture(scope="module")
def head_slices():
    """SGLang's `compute_head_slice_params`, cut out of its file: importing that would import torch."""
    spec = find_spec("sglang")
    if spec is None or spec.origin is None:
        pytest.skip("sglang is not installed")
    path = Path(spec.origin).parent / "srt/disaggregation/common/staging_buffer.py"
    tree = ast.parse(path.read_text())
    wanted = [node for node in tree.body if getattr(node, "name", None) == "compute_head_slice_params"]
    if not wanted:
        pytest.skip("this sglang has no compute_head_slice_params")
    names = {"Tuple": tuple}
    exec(compile(ast.Module(body=wanted, type_ignores=[]), str(path), "exec"), names)
    return names["compute_head_slice_params"]


@pytest.mark.parametrize(("p", "d", "t"), GRID)
def test_each_route_is_what_the_installed_connector_cuts(head_slices, p, d, t):
    assert loadable(t, p)
    layout = KVLayout(name="m", total_kv_heads=t, num_layers=1, head_dim=1)
    for route in plan_slices(layout, Parallelism(tp=p), Parallelism(tp=d)).routes:
        read_at, count, write_at, _ = head_slices(p, d, route.prefill_rank, route.decode_rank, t)
        assert (route.src_head_offset, route.num_heads, route.dst_head_offset) == (read_at, count, write_at)
