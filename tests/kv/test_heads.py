"""Which heads a rank holds, and whom a decode rank asks."""

import pytest

from disagg_cli.kv.heads import HeadRange, aligned, heads_per_rank, loadable, owned, replication, senders


def firsts(total, tp):
    return [owned(total, tp, rank).first for rank in range(tp)]


def test_four_ranks_split_eight_heads():
    assert [owned(8, 4, rank) for rank in range(4)] == [
        HeadRange(0, 2),
        HeadRange(2, 4),
        HeadRange(4, 6),
        HeadRange(6, 8),
    ]


def test_neighbours_share_a_head():
    assert firsts(2, 4) == [0, 0, 1, 1]


def test_one_head_is_everywhere():
    assert firsts(1, 3) == [0, 0, 0]


@pytest.mark.parametrize(("total", "tp", "held", "copies"), [(8, 4, 2, 1), (8, 8, 1, 1), (2, 8, 1, 4), (6, 3, 2, 1)])
def test_heads_per_rank_and_replication(total, tp, held, copies):
    assert (heads_per_rank(total, tp), replication(total, tp)) == (held, copies)


@pytest.mark.parametrize(("total", "tp", "fits"), [(8, 4, True), (8, 16, True), (8, 3, False), (6, 4, False)])
def test_loadable(total, tp, fits):
    assert loadable(total, tp) is fits


@pytest.mark.parametrize(("p", "d", "fits"), [(4, 1, True), (6, 2, True), (2, 3, False), (4, 6, False)])
def test_aligned(p, d, fits):
    assert aligned(p, d) is aligned(d, p) is fits


def test_a_decode_rank_asks_its_share_of_a_wider_prefill():
    assert [list(senders(4, 2, rank)) for rank in range(2)] == [[0, 1], [2, 3]]


def test_decode_ranks_share_a_sender_of_a_narrower_prefill():
    assert [list(senders(2, 4, rank)) for rank in range(4)] == [[0], [0], [1], [1]]


@pytest.mark.parametrize(("span", "text"), [(HeadRange(0, 2), "0-1"), (HeadRange(3, 4), "3")])
def test_a_range_reads_as_people_write_it(span, text):
    assert str(span) == text


def test_ranges_that_do_not_touch_meet_in_nothing():
    assert len(HeadRange(0, 2).meet(HeadRange(4, 6))) == 0
