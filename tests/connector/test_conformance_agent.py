"""The fake NIXL agent: it moves bytes and refuses what is not registered."""

import numpy as np
import pytest

from disagg_cli.connector.conformance.agent import Memory, NixlRefused, RecordingAgent


def memory(*values):
    made, cells = Memory(), np.array(values, dtype=np.uint8)
    return made, cells, made.register(cells)


def rows(*pairs):
    return np.array([(address, length, 0) for address, length in pairs], dtype=np.uint64)


def test_it_copies_what_two_lists_name():
    source, _, read = memory(1, 2, 3, 4)
    target, landed, write = memory(0, 0, 0, 0)
    agent = RecordingAgent({"": source, "d": target})
    lists = agent.prep_xfer_dlist("", rows((read, 2), (read + 2, 2))), agent.prep_xfer_dlist("d", rows((write, 2)))
    assert agent.transfer(agent.make_prepped_xfer("WRITE", lists[0], [1], lists[1], [0])) == "DONE"
    assert landed.tolist() == [3, 4, 0, 0]


def test_runs_stand_for_their_blocks():
    source, _, read = memory(1, 2, 3, 4)
    prepared = RecordingAgent({"": source}).prep_xfer_dlist("", np.array([[read, 1, 0, 2, 2]], dtype=np.uint64))
    assert prepared.descriptors[:, 0].tolist() == [read, read + 2]


@pytest.mark.parametrize(("offset", "length"), [(3, 2), (-1, 1), (4, 1), (1 << 40, 1)])
def test_memory_that_is_not_registered_is_not_found(offset, length):
    source, _, read = memory(1, 2, 3, 4)
    with pytest.raises(NixlRefused, match="NIXL_ERR_NOT_FOUND"):
        RecordingAgent({"": source}).prep_xfer_dlist("", rows((read + offset, length)))


def test_two_regions_do_not_run_into_each_other():
    source, _, read = memory(1, 2)
    source.register(np.zeros(2, dtype=np.uint8))
    with pytest.raises(NixlRefused, match="NIXL_ERR_NOT_FOUND"):
        source.at(read, 3)


@pytest.mark.parametrize("lengths", [(1, 2), (2, 1)])
def test_lists_that_do_not_match_are_invalid(lengths):
    source, _, read = memory(1, 2)
    target, _, write = memory(0, 0)
    agent = RecordingAgent({"": source, "d": target})
    with pytest.raises(NixlRefused, match="NIXL_ERR_INVALID_PARAM"):
        agent.initialize_xfer("WRITE", rows((read, lengths[0])), rows((write, lengths[1])), "d")


def test_an_index_past_the_list_is_invalid():
    source, _, read = memory(1, 2)
    agent = RecordingAgent({"": source})
    prepared = agent.prep_xfer_dlist("", rows((read, 1)))
    with pytest.raises(NixlRefused, match="NIXL_ERR_INVALID_PARAM"):
        agent.make_prepped_xfer("WRITE", prepared, [1], prepared, [0])


def test_an_empty_list_is_invalid():
    with pytest.raises(NixlRefused, match="empty list"):
        RecordingAgent({"": Memory()}).prep_xfer_dlist("", np.empty((0, 5), dtype=np.uint64))


def test_notices_are_kept_by_peer_until_somebody_delivers_them():
    source, _, read = memory(1)
    target, _, write = memory(0)
    agent = RecordingAgent({"": source, "d": target})
    agent.transfer(agent.initialize_xfer("WRITE", rows((read, 1)), rows((write, 1)), "d", b"7_kv_0_1_0"))
    agent.send_notif("d", b"7_aux")
    assert agent.sent == {"d": [b"7_kv_0_1_0", b"7_aux"]}
    assert agent.get_new_notifs() == {}
    agent.arrived += agent.sent["d"]
    assert list(agent.get_new_notifs().values()) == [[b"7_kv_0_1_0", b"7_aux"]]
    assert agent.calls["transfer"] == 1
