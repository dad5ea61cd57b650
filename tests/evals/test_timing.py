"""Figures of a streamed answer."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disagg_cli.evals.timing import bucket, histogram_percentiles, measure, percentiles


def test_one_answer():
    timing = measure(start=10.0, arrivals=[(10.5, 1), (11.5, 1), (11.6, 1)], end=12.0, tokens=4)
    assert timing.first_token_s == pytest.approx(0.5)
    assert timing.second_token_gap_s == pytest.approx(1.0)
    assert timing.tpot_s == pytest.approx(0.5)
    assert timing.end_to_end_s == pytest.approx(2.0)


def test_nothing_arrived():
    timing = measure(start=0.0, arrivals=[], end=3.0, tokens=None)
    assert (timing.first_token_s, timing.second_token_gap_s, timing.tpot_s, timing.gaps) == (None, None, None, {})


def test_two_pieces_at_once_have_no_gap():
    assert measure(start=0.0, arrivals=[(1.0, 2), (2.0, 1)], end=3.0, tokens=3).second_token_gap_s == 0.0


def test_a_gap_is_shared_by_the_tokens_of_a_piece():
    """Ten tokens in two pieces, 1 s apart: 0.2 s a token, not 1 s."""
    gaps = measure(start=0.0, arrivals=[(1.0, 1), (2.0, 1)], end=2.0, tokens=10).gaps
    assert gaps == {bucket(0.2): 1}


def test_percentiles_are_values_that_occurred():
    summary = percentiles([float(i) for i in range(1, 101)] + [None])
    assert (summary.n, summary.p50, summary.p90, summary.p99, summary.max) == (100, 50.0, 90.0, 99.0, 100.0)
    assert percentiles([None]) is None


@settings(deadline=None)
@given(st.lists(st.floats(2e-6, 100), min_size=1, max_size=50))
def test_a_histogram_is_within_a_fiftieth(values):
    exact = percentiles(values)
    rough = histogram_percentiles([{bucket(value): values.count(value)} for value in set(values)])
    assert rough.n == exact.n
    for name in ("p50", "p90", "p99", "max"):
        assert getattr(rough, name) == pytest.approx(getattr(exact, name), rel=0.02)
