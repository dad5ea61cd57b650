"""Exact tests and the verdict: scipy as the oracle, the published tables as examples."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from disagg_cli.evals.statistics import (
    Gate,
    Outcome,
    binomial_at_most,
    critical,
    detectable_drop,
    judge,
    mcnemar,
    wilson,
    wilson_bound,
)

counts = st.integers(1, 3000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@settings(deadline=None)
@given(counts, st.floats(0.001, 0.999))
def test_binomial_is_scipys(count, p):
    k, n = count
    assert binomial_at_most(k, n, p) == pytest.approx(stats.binom.cdf(k, n, p), rel=1e-8, abs=1e-13)


@settings(deadline=None)
@given(counts)
def test_wilson_is_scipys(count):
    k, n = count
    low, high = stats.binomtest(k, n).proportion_ci(0.95, "wilson")
    assert wilson(k, n) == pytest.approx((low, high), abs=1e-9)
    assert wilson_bound(k, n, upper=False) == pytest.approx(wilson(k, n, 0.9)[0], abs=1e-9)


@pytest.mark.parametrize(
    ("n", "at_five_percent", "at_one_percent"),
    [
        (50, 45, 43),
        (100, 92, 90),
        (200, 186, 184),
        (300, 282, 279),
        (500, 472, 469),
        (1000, 950, 945),
        (1319, 1255, 1250),
    ],
)
def test_the_gate_for_a_baseline_of_0961(n, at_five_percent, at_one_percent):
    assert (critical(n, 0.961, 0.05), critical(n, 0.961, 0.01)) == (at_five_percent, at_one_percent)


@pytest.mark.parametrize(
    ("n", "least", "margin"),
    [(200, 189, 0.05), (200, 193, 0.03), (500, 475, 0.03), (1319, 1256, 0.02), (1319, 1244, 0.03)],
)
def test_least_count_that_passes(n, least, margin):
    gate = Gate(baseline=0.961, margin=margin)
    assert judge(least, n, gate).outcome is Outcome.PASS
    assert judge(least - 1, n, gate).outcome is not Outcome.PASS


def test_fail():
    assert judge(184, 200, Gate(baseline=0.961)).outcome is Outcome.FAIL
    assert judge(0, 1, Gate(baseline=0.961, floor=0.5)).reason == "accuracy 0.0000 is below the floor 0.5000"


def test_inconclusive_says_what_would_decide():
    verdict = judge(190, 200, Gate(baseline=0.961))
    assert verdict.outcome is Outcome.INCONCLUSIVE
    right = round(0.95 * verdict.needed)
    assert judge(right, verdict.needed, Gate(baseline=0.961)).outcome is not Outcome.INCONCLUSIVE


def test_a_proven_loss_within_the_margin_is_told():
    verdict = judge(1248, 1319, Gate(baseline=0.961, margin=0.03))
    assert verdict.outcome is Outcome.PASS
    assert "lower than the baseline all the same" in verdict.reason


def test_more_questions_see_smaller_drops():
    drops = [detectable_drop(n, 0.961, 0.05) for n in (50, 200, 1319)]
    assert drops == pytest.approx([0.092, 0.045, 0.014], abs=0.001)
    assert detectable_drop(2, 0.5, 0.05) is None


@settings(deadline=None)
@given(st.integers(0, 200), st.integers(0, 200))
def test_mcnemar_is_the_exact_binomial_test(lost, gained):
    expected = stats.binomtest(lost, lost + gained, 0.5, alternative="greater").pvalue if lost + gained else 1.0
    assert mcnemar(lost, gained) == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize(("lost", "gained", "p"), [(7, 1, 0.035), (6, 2, 0.145), (12, 4, 0.038), (5, 0, 0.031)])
def test_mcnemar_examples(lost, gained, p):
    assert mcnemar(lost, gained) == pytest.approx(p, abs=0.0005)
