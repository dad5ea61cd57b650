"""When a gang is started again, and when no more."""

from hypothesis import given
from hypothesis import strategies as st

from disagg_cli.runtime.restart import LONGEST_PAUSE_S, pause
from disagg_cli.topology.spec import RestartSpec

GANG = RestartSpec(policy="gang", times=3, within_s=3600.0, backoff_s=5.0)
times = st.lists(st.floats(0, 1e6), max_size=10).map(sorted)


def test_never_is_the_default():
    assert pause(RestartSpec(), [], 0.0) is None


def test_each_pause_is_twice_the_one_before():
    assert [pause(GANG, [100.0 * n for n in range(count)], 300.0) for count in range(3)] == [5.0, 10.0, 20.0]


def test_not_more_often_than_said():
    assert pause(GANG, [0.0, 100.0, 200.0], 300.0) is None


def test_what_is_long_ago_no_longer_counts():
    """A gang that dies once a week is started again each week."""
    week = 7 * 24 * 3600.0
    assert pause(GANG, [0.0, week, 2 * week], 3 * week) == 5.0


@given(times, st.floats(0, 1e6), st.integers(1, 9))
def test_a_pause_is_bounded_and_so_is_their_number(earlier, later, most):
    spec = RestartSpec(policy="gang", times=most, within_s=3600.0, backoff_s=30.0)
    now = max(earlier, default=0.0) + later
    found = pause(spec, earlier, now)
    recent = [at for at in earlier if now - at < 3600.0]
    assert (found is None) == (len(recent) >= most)
    assert found is None or 30.0 <= found <= LONGEST_PAUSE_S
