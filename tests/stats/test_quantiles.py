"""Quantiles of clustered values: hand-computed, mirrored, rescaled, and too few values."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from refract.stats.quantiles import quantiles


def test_interval_by_hand() -> None:
    # 10 clusters of 20; shares beyond the median differ: Woodruff's levels are .5 -+ t * SE, the upper on the log scale
    values, names = np.random.default_rng(3).normal(size=200), [f"w{i // 20}" for i in range(200)]
    found = quantiles(values, names, [0.5])[0.5]
    shares = (values > np.median(values)).reshape(10, 20).mean(axis=1)
    se, t = shares.std(ddof=1) / math.sqrt(10), stats.t.ppf(0.975, 9)
    assert found is not None
    assert found.low == pytest.approx(np.quantile(values, 0.5 - t * se), rel=1e-9)
    assert found.high >= np.quantile(values, 0.5 * math.exp(t * se / 0.5)) - 1e-9
    assert found.method == "woodruff"


@settings(max_examples=30)
@given(st.integers(0, 2**16))
def test_mirrored_values_have_mirrored_intervals(seed: int) -> None:
    x, names = np.random.default_rng(seed).normal(size=150), [str(i % 6) for i in range(150)]
    there, back = quantiles(x, names, [0.9])[0.9], quantiles(-x, names, [0.1])[0.1]
    assert there is not None
    assert back is not None
    assert (there.low, there.high) == pytest.approx((-back.high, -back.low))


def test_interval_follows_a_monotone_change_of_scale() -> None:
    x, names = np.random.default_rng(5).normal(size=501), [str(i % 12) for i in range(501)]
    plain, scaled = quantiles(x, names, [0.5])[0.5], quantiles(3.0 * x + 1.0, names, [0.5])[0.5]
    assert plain is not None
    assert scaled is not None
    assert (scaled.low, scaled.high) == pytest.approx((3 * plain.low + 1, 3 * plain.high + 1))


def test_equal_values_have_no_width() -> None:
    found = quantiles([0.0] * 60, [str(i % 6) for i in range(60)], [0.5])[0.5]
    assert found is not None
    assert (found.low, found.value, found.high) == (0.0, 0.0, 0.0)


def test_value_is_numpys_quantile() -> None:
    x, c = np.arange(100.0), [f"w{i % 7}" for i in range(100)]
    first = quantiles(x, c, [0.5, 0.9])
    assert first[0.9] is not None
    assert first[0.9].value == np.quantile(x, 0.9)
    assert (first[0.9].n, first[0.9].clusters) == (100, 7)


@pytest.mark.parametrize(("n", "known"), [(9_999, False), (10_000, True)])
def test_a_quantile_needs_ten_values_beyond_it(n: int, known: bool) -> None:
    found = quantiles(np.arange(float(n)), [str(i % 20) for i in range(n)], [0.999, 0.5])
    assert (found[0.999] is not None) == known
    assert found[0.5] is not None


def test_low_quantiles_and_small_samples_follow_the_same_rule() -> None:
    found = quantiles(np.arange(100.0), [str(i % 20) for i in range(100)], [0.05, 0.1])
    assert found[0.05] is None
    assert found[0.1] is not None
    assert quantiles([1.0, 2.0], ["a", "b"], [0.5]) == {0.5: None}


def test_one_cluster_has_no_interval() -> None:
    assert quantiles(np.arange(100.0), ["a"] * 100, [0.5]) == {0.5: None}


@settings(max_examples=20)
@given(st.integers(0, 2**16))
def test_intervals_stay_within_the_values(seed: int) -> None:
    x = np.random.default_rng(seed).pareto(0.7, size=120)
    for e in quantiles(x, [str(i % 4) for i in range(120)], [0.1, 0.5, 0.9]).values():
        assert e is not None
        assert x.min() <= e.low <= e.value <= e.high <= x.max()


@pytest.mark.parametrize(
    ("values", "clusters", "why"),
    [([], [], "one cluster per value"), ([1.0], ["a", "b"], "one cluster per value"), ([math.nan], ["a"], "finite")],
)
def test_what_has_no_quantiles_is_refused(values: list[float], clusters: list[str], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        quantiles(values, clusters, [0.5])
