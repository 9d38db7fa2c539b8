"""Quantiles and their cluster bootstrap, checked against literal concatenation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refract.stats.quantiles import _weighted_quantiles, quantiles


@given(
    st.lists(st.tuples(st.floats(-5, 5), st.integers(0, 3)), min_size=1, max_size=30).filter(
        lambda x: any(c for _, c in x)
    )
)
def test_multiplicities_equal_repeated_values(pairs: list[tuple[float, int]]) -> None:
    values = np.array([v for v, _ in pairs])
    counts = np.array([c for _, c in pairs])
    order, probs = np.argsort(values), np.array([0.0, 0.1, 0.5, 0.9, 1.0])
    found = _weighted_quantiles(values[order], np.cumsum(counts[order]).astype(np.int32), probs)
    np.testing.assert_allclose(found, np.quantile(np.repeat(values, counts), probs), rtol=1e-12, atol=1e-12)


def test_interval_equals_a_bootstrap_by_concatenation() -> None:
    rng = np.random.default_rng(3)
    values, clusters = rng.lognormal(size=200), np.repeat([f"w{i}" for i in range(10)], 20)
    found = quantiles(values, list(clusters), [0.5], replicates=300, seed=11)[0.5]
    counts = np.random.default_rng(11).multinomial(10, np.full(10, 0.1), size=300)
    blocks = values.reshape(10, 20)
    draws = [np.quantile(np.repeat(blocks, c, axis=0), 0.5) for c in counts]
    from scipy import stats

    widening = math.sqrt(10 / 9) * stats.t.ppf(0.975, 9) / stats.norm.ppf(0.975)
    assert found is not None
    expected = found.value + widening * (np.quantile(draws, [0.025, 0.975]) - found.value)
    assert (found.low, found.high) == pytest.approx(tuple(expected), rel=1e-9)


def test_value_is_numpys_quantile_and_the_same_seed_gives_the_same_interval() -> None:
    x, c = np.arange(100.0), [f"w{i % 7}" for i in range(100)]
    first, again = (quantiles(x, c, [0.5, 0.9], replicates=200, seed=1) for _ in range(2))
    assert first == again
    assert first[0.9] is not None
    assert first[0.9].value == np.quantile(x, 0.9)
    assert (first[0.9].n, first[0.9].clusters) == (100, 7)


@pytest.mark.parametrize(("n", "known"), [(9_999, False), (10_000, True)])
def test_a_quantile_needs_ten_values_beyond_it(n: int, known: bool) -> None:
    found = quantiles(np.arange(float(n)), [str(i % 20) for i in range(n)], [0.999, 0.5], replicates=20)
    assert (found[0.999] is not None) == known
    assert found[0.5] is not None


def test_low_quantiles_and_small_samples_follow_the_same_rule() -> None:
    found = quantiles(np.arange(100.0), [str(i % 20) for i in range(100)], [0.05, 0.1], replicates=20)
    assert found[0.05] is None
    assert found[0.1] is not None
    assert quantiles([1.0, 2.0], ["a", "b"], [0.5]) == {0.5: None}


def test_one_cluster_has_no_interval() -> None:
    assert quantiles(np.arange(100.0), ["a"] * 100, [0.5]) == {0.5: None}


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**16))
def test_intervals_stay_within_the_values(seed: int) -> None:
    x = np.random.default_rng(seed).pareto(0.7, size=120)
    for e in quantiles(x, [str(i % 4) for i in range(120)], [0.1, 0.5, 0.9], replicates=50, seed=seed).values():
        assert e is not None
        assert x.min() <= e.low <= e.value <= e.high <= x.max()


@pytest.mark.parametrize(
    ("values", "clusters", "why"),
    [([], [], "one cluster per value"), ([1.0], ["a", "b"], "one cluster per value"), ([math.nan], ["a"], "finite")],
)
def test_what_has_no_quantiles_is_refused(values: list[float], clusters: list[str], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        quantiles(values, clusters, [0.5])
