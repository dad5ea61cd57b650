"""What a rehearsal needs, and the one rule by which it is made smaller: fewer decode workers, nothing else."""

import pytest
from deployments import ON_GPUS
from hypothesis import given
from hypothesis import strategies as st

from disagg_cli.errors import PlanRefused
from disagg_cli.rehearsal.derive import derive
from disagg_cli.rehearsal.scaling import BESIDE, RANKS_PER_CORE, Room, fit, needs
from disagg_cli.topology.spec import TopologySpec

HERE = Room(cores=2, memory_gib=20)


def derived(**changes):
    return derive(TopologySpec.model_validate(ON_GPUS | changes))


def workers(found):
    return [pool["workers"] for pool in found.document["decode"]]


def test_each_server_is_its_ranks_and_two_more():
    found = needs(derived(prefill={"tp": 4}, decode={"workers": 4}).document, HERE, warm=True)
    assert found.ranks == 4 + 4
    assert found.processes == (4 + 2) + 4 * (1 + 2) + BESIDE


def test_with_dp_a_server_has_a_controller_too():
    plain, dp = (
        needs(derived(prefill={"tp": 2, **more}).document, HERE, warm=True)
        for more in ({}, {"dp": 2, "dp_attention": True})
    )
    assert (dp.ranks, dp.processes) == (plain.ranks, plain.processes + 1)


def test_a_parent_that_is_up_has_taken_its_memory_already():
    document, there = derived().document, Room(cores=2, memory_gib=20, has_parent=True)
    assert needs(document, there, warm=True).memory_gib < needs(document, HERE, warm=True).memory_gib
    assert needs(document, there, warm=False) == needs(document, HERE, warm=False)


def test_cold_needs_more():
    document = derived().document
    assert needs(document, HERE, warm=False).memory_gib > 2 * needs(document, HERE, warm=True).memory_gib


def test_what_fits_is_left_alone():
    found = derived(prefill={"tp": 4}, decode={"workers": 4})
    assert fit(found, HERE, warm=True)[0] is found


def test_fewer_decode_workers_of_the_same_shape():
    fitting, least = fit(derived(prefill={"tp": 8}, decode={"workers": 4, "tp": 4}), HERE, warm=True)
    assert workers(fitting) == [2]
    assert fitting.document["decode"][0]["tp"] == 4
    assert least.ranks == 8 + 2 * 4 == RANKS_PER_CORE * HERE.cores
    (told,) = [note for note in fitting.notes if "decode" in note.what]
    assert (told.kind, told.what) == ("reduced", "4 x decode TP4: only 2")
    assert told.why.startswith("24 ranks in")


def test_each_pool_keeps_one():
    room = Room(cores=1, memory_gib=20)
    fitting, _ = fit(derived(prefill={"tp": 2}, decode=[{"workers": 4}, {"workers": 1, "tp": 4}]), room, warm=True)
    assert workers(fitting) == [2, 1]
    assert [note.what for note in fitting.pools] == ["1 x prefill TP2", "4 x decode TP1: only 2", "1 x decode TP4"]


def test_no_room_for_the_least_is_refused_with_the_numbers():
    with pytest.raises(PlanRefused, match=r"24 ranks .* 24 of 16 places .* 20.0 GiB are free"):
        fit(derived(prefill={"tp": 16}, decode={"tp": 8}), HERE, warm=True)


def test_memory_counts_too():
    with pytest.raises(PlanRefused, match=r"1\.0 GiB are free"):
        fit(derived(), Room(cores=2, memory_gib=1), warm=True)


@given(st.integers(1, 4), st.integers(0, 3), st.integers(0, 3), st.integers(1, 30), st.integers(1, 64), st.booleans())
def test_what_is_left_fits_and_prefill_is_never_touched(prefills, p, d, decodes, cores, warm):
    found = derived(prefill={"workers": prefills, "tp": 2**p}, decode={"workers": decodes, "tp": 2**d})
    room = Room(cores=cores, memory_gib=20)
    try:
        fitting, least = fit(found, room, warm=warm)
    except PlanRefused:
        least = needs(found.fewer_decodes([1], "").document, room, warm=warm)
        assert not least.fits(room)
        return
    assert least.fits(room)
    assert fitting.document["prefill"] == found.document["prefill"]
    (left,) = workers(fitting)
    if left < decodes:
        assert not needs(found.fewer_decodes([left + 1], "").document, room, warm=warm).fits(room)
