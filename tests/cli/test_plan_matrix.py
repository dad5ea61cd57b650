"""The plan as a matrix, and how it folds."""

from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from disagg_cli.console.plan_matrix import PlanMatrix, fold, fold_cells
from disagg_cli.kv.layout import KVLayout
from disagg_cli.kv.parallelism import Parallelism
from disagg_cli.kv.plan import plan_slices


def plan(prefill, decode, total):
    layout = KVLayout(name="m", total_kv_heads=total, num_layers=1, head_dim=1)
    return plan_slices(layout, Parallelism(tp=prefill), Parallelism(tp=decode))


def seen(made, width=80, wrong=()):
    out = Console(file=StringIO(), width=width)
    out.print(PlanMatrix(made, wrong))
    return out.file.getvalue()


def test_small_plans_show_every_rank():
    assert [line.split() for line in seen(plan(2, 4, 8)).splitlines()[2:]] == [
        ["0", "0-1", "2-3", "\N{MIDDLE DOT}", "\N{MIDDLE DOT}"],
        ["1", "\N{MIDDLE DOT}", "\N{MIDDLE DOT}", "4-5", "6-7"],
    ]


@pytest.mark.parametrize("width", [80, 120])
def test_64_by_64_fits_the_screen(width):
    lines = seen(plan(64, 64, 8), width).splitlines()
    assert len(lines) <= 20
    assert max(len(line) for line in lines) <= width
    assert "folded" in lines[-1]


@given(st.integers(1, 200), st.integers(1, 16))
def test_folding_keeps_every_rank_once(ranks, most):
    groups = fold(ranks, most)
    assert [rank for group in groups for rank in group] == list(range(ranks))
    assert len(groups) <= most


def test_a_cell_counts_its_routes():
    made = plan(64, 16, 16)
    cells = fold_cells(made, fold(64, 16), fold(16, 4))
    assert sum(cell.routes for cell in cells.values()) == len(made.routes)
    assert str(cells[0, 0].heads) == "0"


def test_wrong_ranks_mark_their_cells():
    cells = fold_cells(plan(1, 4, 2), fold(1, 16), fold(4, 4), wrong=(1, 2))
    assert [cells[0, column].wrong for column in range(4)] == [False, True, True, False]
