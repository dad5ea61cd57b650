"""Which planted faults can show themselves between two workers."""

import pytest

from disagg_cli.connector.faults.catalogue import FAULTS, idle, named
from disagg_cli.errors import UsageError
from disagg_cli.kv.layout import KVLayout, LayoutKind
from disagg_cli.kv.parallelism import Parallelism
from disagg_cli.kv.plan import plan_slices

ALL = {fault.name for fault in FAULTS}


def acting(p, d, t, kind=LayoutKind.MHA):
    """The faults that act between TP `p` and TP `d` of a model with `t` KV heads."""
    layout = KVLayout(name="m", kind=kind, total_kv_heads=t, num_layers=1, head_dim=8)
    plan = plan_slices(layout, Parallelism(tp=p), Parallelism(tp=d))
    return {fault.name for fault in FAULTS if not idle(fault, plan)}


@pytest.mark.parametrize(
    ("size", "faults"),
    [
        ((2, 1, 4), ALL),
        ((4, 1, 8), ALL),
        ((2, 2, 4), {"lose-completion", "delay-completion"}),  # whole rows, from one sender each
        ((2, 4, 4), ALL - {"same-key"}),  # each decode rank has one sender
        ((1, 2, 2), {"shift-rank", "drop-page"}),  # there is no prefill rank 1
        ((4, 1, 2), ALL - {"swap-heads"}),  # ranks 0 and 1 hold the same head
    ],
)
def test_what_acts(size, faults):
    assert acting(*size) == faults


def test_a_latent_has_no_heads_and_one_sender():
    assert acting(2, 1, 1, LayoutKind.MLA) == set()


def test_a_name_that_is_no_faults():
    with pytest.raises(UsageError, match="unknown fault: lose-head") as caught:
        named(["swap-heads", "lose-head"])
    assert "one of: swap-heads, shift-rank" in caught.value.fix
