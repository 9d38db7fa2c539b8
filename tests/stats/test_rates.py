"""Proportions and event rates against scipy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from refract.stats.rates import clustered_rate, poisson_rate, wilson


@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_matches_scipy(case: tuple[int, int]) -> None:
    k, n = case
    found, expected = wilson(k, n), stats.binomtest(k, n).proportion_ci(method="wilson")
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-9, abs=1e-12)


def test_wilson_at_the_edges() -> None:
    assert wilson(0, 10).low == 0.0
    assert wilson(10, 10).high == 1.0
    assert wilson(10, 10).low == pytest.approx(0.7225, abs=1e-4)


@pytest.mark.parametrize(("k", "n"), [(-1, 5), (6, 5), (0, 0)])
def test_impossible_proportions_are_refused(k: int, n: int) -> None:
    with pytest.raises(ValueError, match="proportion"):
        wilson(k, n)


@pytest.mark.parametrize("events", [0, 1, 14, 19, 300])
def test_poisson_interval_is_exact(events: int) -> None:
    found = poisson_rate(events, 1500.0, per=1000.0)
    low = stats.chi2.ppf(0.025, 2 * events) / 2 / 1.5 if events else 0.0
    high = stats.chi2.ppf(0.975, 2 * events + 2) / 2 / 1.5
    assert (found.low, found.value, found.high) == pytest.approx((low, events / 1.5, high), rel=1e-10)
    # the ends are where the observed count has 2.5 % in each tail
    assert stats.poisson.cdf(events, found.high * 1.5) == pytest.approx(0.025, rel=1e-8)


@pytest.mark.parametrize(("events", "exposure"), [(-1, 10.0), (1, 0.0)])
def test_impossible_rates_are_refused(events: int, exposure: float) -> None:
    with pytest.raises(ValueError, match="rate"):
        poisson_rate(events, exposure)


def test_clustered_rate_by_hand() -> None:
    # r = 3/40; residuals 1-.75, 1-1.5, 1-.5 per 10, 20, 10 -> .25, -.5, .25; var = 3/2 * .375 / 1600
    found = clustered_rate([1, 1, 1], [10, 20, 10], ["a", "b", "c"])
    step = np.sqrt(1.5 * 0.375) / 40 / 0.075 * stats.t.ppf(0.975, 2)
    assert found.value == pytest.approx(75.0)
    assert found.low == pytest.approx(75.0 * np.exp(-step), rel=1e-10)
    assert found.method == "cr1-log-t"


def test_rates_that_differ_between_clusters_widen_the_interval() -> None:
    rng = np.random.default_rng(0)
    exposures, rates = np.full(60, 100.0), rng.gamma(0.5, 0.04, size=60)
    events = rng.poisson(rates * exposures)
    robust = clustered_rate(events.tolist(), exposures.tolist(), [str(i) for i in range(60)])
    naive = poisson_rate(int(events.sum()), float(exposures.sum()))
    assert robust.value == pytest.approx(naive.value)
    assert robust.high - robust.low > 1.5 * (naive.high - naive.low)


def test_without_spread_the_exact_interval_stands_in() -> None:
    none = clustered_rate([0, 0], [100, 28], ["a", "b"])
    assert (none.value, none.low, none.clusters) == (0.0, 0.0, 2)
    assert none.high == pytest.approx(stats.chi2.ppf(0.975, 2) / 2 / 0.128)
    assert clustered_rate([1], [100], ["a"]).method == "poisson-exact"
