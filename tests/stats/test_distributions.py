"""The library's own quantiles against scipy's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats

from refract.stats import distributions as d

PROBS = [1e-9, 1e-4, 0.025, 0.3, 0.5, 0.8, 0.975, 0.9999]


@pytest.mark.parametrize("df", [1, 2, 3, 7, 23, 31, 95, 500, 10_000])
def test_student_quantiles_match_scipy(df: int) -> None:
    np.testing.assert_allclose(d.student_t_quantiles(PROBS, df), stats.t.ppf(PROBS, df), rtol=1e-10, atol=1e-12)
    assert d.student_t_quantile(0.5, df) == 0.0


@pytest.mark.parametrize("df", [1, 4, 31, 1000])
def test_student_tail_matches_scipy_far_out(df: int) -> None:
    np.testing.assert_allclose(
        d.student_t_tail([0.0, 0.5, 3.0, 40.0], df), stats.t.sf([0.0, 0.5, 3.0, 40.0], df), rtol=1e-10
    )


@pytest.mark.parametrize("df", [1, 2, 5, 40, 1000, 20_000])
def test_chi_square_quantiles_match_scipy(df: int) -> None:
    found = [d.chi2_quantile(p, df) for p in PROBS]
    np.testing.assert_allclose(found, stats.chi2.ppf(PROBS, df), rtol=1e-10)
    assert d.chi2_quantile(0.0, df) == 0.0


@pytest.mark.parametrize(("a", "b"), [(0.5, 0.5), (9.5, 0.5), (3, 20), (100, 300), (30, 1), (1e4, 2e4)])
def test_beta_matches_scipy(a: float, b: float) -> None:
    x = np.linspace(0.0, 1.0, 41)
    np.testing.assert_allclose(d.beta_cdf(x, a, b), special.betainc(a, b, x), rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose([d.beta_quantile(p, a, b) for p in PROBS], stats.beta.ppf(PROBS, a, b), rtol=1e-10)


@pytest.mark.parametrize("a", [0.5, 1.0, 7.5, 400.0])
def test_gamma_matches_scipy(a: float) -> None:
    for x in (0.0, 0.01, a / 2, a, 2 * a, 5 * a + 20):
        assert d.gamma_cdf(x, a) == pytest.approx(special.gammainc(a, x), rel=1e-10, abs=1e-13)


@given(n=st.integers(1, 200), k=st.integers(-1, 201), p=st.floats(0.01, 0.99))
def test_binomial_matches_scipy(n: int, k: int, p: float) -> None:
    assert d.binomial_cdf(k, n, p) == pytest.approx(stats.binom.cdf(k, n, p), rel=1e-9, abs=1e-13)


@pytest.mark.parametrize("p", PROBS)
def test_normal_quantile_matches_scipy(p: float) -> None:
    assert d.normal_quantile(p) == pytest.approx(stats.norm.ppf(p), rel=1e-10, abs=1e-15)


def test_grids_are_the_laws_at_equal_steps_and_read_only() -> None:
    u = (np.arange(50) + 0.5) / 50
    np.testing.assert_allclose(d.student_t_grid(50, 7), stats.t.ppf(u, 7), rtol=1e-10)
    np.testing.assert_allclose(d.normal_grid(50), stats.norm.ppf(u), rtol=1e-10)
    with pytest.raises(ValueError, match="read-only"):
        d.normal_grid(50)[0] = 0.0


def test_widening_shrinks_to_one_with_many_clusters() -> None:
    widths = [d.bootstrap_widening(g, 0.95) for g in (2, 5, 20, 100, 10_000)]
    assert widths == sorted(widths, reverse=True)
    assert widths[2] == pytest.approx(np.sqrt(20 / 19) * stats.t.ppf(0.975, 19) / stats.norm.ppf(0.975))
    assert widths[-1] == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize(
    "call",
    [
        lambda: d.student_t_quantile(0.0, 3),
        lambda: d.student_t_quantile(0.5, 0),
        lambda: d.chi2_quantile(1.0, 3),
        lambda: d.chi2_quantile(0.5, -1),
        lambda: d.beta_quantile(0.5, 0, 1),
    ],
)
def test_impossible_arguments_are_refused(call: object) -> None:
    with pytest.raises(ValueError, match="need"):
        call()  # type: ignore[operator]
