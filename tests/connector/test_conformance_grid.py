"""The grid of checks, and how a check is made of a model's plan; nothing here runs SGLang."""

from types import SimpleNamespace

import pytest

from disagg_cli.connector.conformance.exchange import Observed
from disagg_cli.connector.conformance.installed import Installed
from disagg_cli.connector.conformance.ranks import Side, build_rank
from disagg_cli.connector.conformance.verify import Check, expect, fits, grid, one_check, run_check
from disagg_cli.connector.releases import choose_release
from disagg_cli.kv.heads import HeadRange
from disagg_cli.kv.layout import KVLayout
from disagg_cli.kv.models import layout_for
from disagg_cli.kv.parallelism import Parallelism


def check(model, prefill, *decode):
    return one_check(layout_for(model), Parallelism(tp=prefill), [Parallelism(tp=tp) for tp in decode])


def test_the_grid_holds_every_size_of_the_table_and_can_be_run():
    checks = list(grid())
    assert len([one for one in checks if one.label == "mha" and one.prefill.pp == 1]) == 5 * 5 * 6
    assert all(fits(one) for one in checks)


def test_ranks_hold_the_labels_of_their_heads():
    layout = KVLayout(name="m", total_kv_heads=4, num_layers=2, head_dim=1)
    ranks = [build_rank(layout, Side(2, rank, HeadRange(0, 2), prefill=False), filled=True) for rank in (0, 1)]
    labels = [set(rank.kv[0].cells.ravel().tolist()) - {0} for rank in ranks]
    assert labels[0].isdisjoint(labels[1])
    assert [buffer.layer for buffer in ranks[0].kv] == [0, 1, 0, 1]


def test_a_models_check_keeps_its_heads_and_layers():
    made = check("Qwen/Qwen3-32B", 4, 1).layout
    assert (made.total_kv_heads, made.num_layers, made.head_dim) == (8, 64, 1)


def test_states_shrink_so_far_as_ranks_can_share_them():
    made = check("Qwen/Qwen3.5-397B-A17B", 4, 2).layout
    assert [tensor.parts for tensor in made.state.tensors] == [(4, 4, 16), (4,)]


def test_k_and_v_of_different_size_stay_different():
    assert check("XiaomiMiMo/MiMo-V2-Flash", 4, 4).layout.asymmetric


@pytest.mark.parametrize(("prefill", "decode"), [(3, 1), (16, 24)])
def test_what_sglang_does_not_load_or_map_is_not_run(prefill, decode):
    assert not fits(check("Qwen/Qwen3-32B", prefill, decode))


def test_a_connector_that_lacks_a_name_is_not_judged():
    class Manager:
        """A connector of a release to come, which wants what no earlier one does."""

        def __init__(self, *_args):
            self.engine = self.transfer_fabric

    changed = Installed(
        nixl=SimpleNamespace(NixlKVManager=Manager, DisaggregationMode=SimpleNamespace(PREFILL=1, DECODE=2)),
        base=SimpleNamespace(KVArgs=type("KVArgs", (), {}), StateType=None),
        common=SimpleNamespace(CommonKVManager=type("CommonKVManager", (), {})),
        prefill=SimpleNamespace(),
    )
    cell = run_check(changed, check("Qwen/Qwen3-0.6B", 2, 1), choose_release("0.5.23"))
    assert (cell.agrees, cell.observed) == (False, None)
    assert "cannot be driven" in cell.note
    assert "transfer_fabric" in cell.note


def test_pools_are_expected_to_fail_together():
    layout = KVLayout(name="m", total_kv_heads=4, num_layers=2, head_dim=1)
    both = Check(label="m", layout=layout, prefill=Parallelism(tp=2), pools=(Parallelism(tp=1), Parallelism(tp=4)))
    assert expect(both, choose_release("0.5.23")).outcome == "runtime_error"
    assert Observed(outcome="ok", detail="").wrong_ranks == ()
