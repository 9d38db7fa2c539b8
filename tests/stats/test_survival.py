"""Kaplan–Meier and restricted means against lifelines and by hand."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # lifelines and what it imports deprecate things among themselves
    from lifelines import KaplanMeierFitter
    from lifelines.utils import restricted_mean_survival_time

from refract.stats.survival import kaplan_meier, rmst, survival_at

data = st.lists(st.tuples(st.integers(0, 40), st.booleans()), min_size=1, max_size=40)


def test_by_hand() -> None:
    curve = kaplan_meier([3, 5, 5, 8], [True, True, False, False])
    assert curve.time == (3, 5, 8)
    assert curve.survival == pytest.approx((0.75, 0.5, 0.5))
    assert (curve.at_risk, curve.events) == ((4, 3, 1), (1, 1, 0))
    # sum of S(t) for t = 0..9: 3 at 1, 2 at .75, 5 at .5
    value, variance = rmst(curve, 10)
    assert value == pytest.approx(7.0)
    assert variance == pytest.approx(4.0**2 / (4 * 3) + 2.5**2 / (3 * 2))


def test_all_survive() -> None:
    curve = kaplan_meier([128] * 5, [False] * 5)
    assert (curve.survival, curve.low, curve.high) == ((1.0,), (1.0,), (1.0,))
    assert rmst(curve, 128) == (128.0, 0.0)


def test_all_diverge_at_once() -> None:
    curve = kaplan_meier([0, 0], [True, True])
    assert (curve.survival, curve.low, curve.high) == ((0.0,), (0.0,), (1.0,))
    assert rmst(curve, 128) == (0.0, 0.0)


@settings(max_examples=60)
@given(data)
def test_matches_lifelines(pairs: list[tuple[int, bool]]) -> None:
    times, events = [t for t, _ in pairs], [e for _, e in pairs]
    curve = kaplan_meier(times, events)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitter = KaplanMeierFitter().fit(times, events)
        area = restricted_mean_survival_time(fitter, t=41)
    bounds = fitter.confidence_interval_survival_function_
    for i, t in enumerate(curve.time):
        assert curve.survival[i] == pytest.approx(fitter.survival_function_.loc[t].iloc[0], abs=1e-12)
        assert curve.at_risk[i] == fitter.event_table.loc[t, "at_risk"]
        if 0.0 < curve.survival[i] < 1.0:
            assert (curve.low[i], curve.high[i]) == pytest.approx(tuple(bounds.loc[t]), abs=1e-9)
    assert rmst(curve, 41)[0] == pytest.approx(area, rel=1e-9)


@given(data, st.integers(1, 50))
def test_rmst_is_the_sum_of_survival(pairs: list[tuple[int, bool]], tau: int) -> None:
    curve = kaplan_meier([t for t, _ in pairs], [e for _, e in pairs])
    assert rmst(curve, tau)[0] == pytest.approx(sum(survival_at(curve, t) for t in range(tau)))


@given(st.lists(st.integers(0, 40), min_size=2, max_size=40))
def test_without_censoring_rmst_is_the_mean_and_greenwood_its_variance(times: list[int]) -> None:
    value, variance = rmst(kaplan_meier(times, [True] * len(times)), 41)
    assert value == pytest.approx(np.mean(times))
    assert variance == pytest.approx(np.var(times) / len(times), abs=1e-9)


@given(data)
def test_curve_never_rises_and_stays_within_its_bounds(pairs: list[tuple[int, bool]]) -> None:
    curve = kaplan_meier([t for t, _ in pairs], [e for _, e in pairs])
    assert list(curve.survival) == sorted(curve.survival, reverse=True)
    assert all(
        lo <= s + 1e-12 and s <= hi + 1e-12 for lo, s, hi in zip(curve.low, curve.survival, curve.high, strict=True)
    )


@pytest.mark.parametrize(("h", "tau", "share"), [(0.005, 128, 73.6), (0.02, 256, 19.0)])
def test_constant_hazard_gives_the_published_share(h: float, tau: int, share: float) -> None:
    times = np.minimum(np.random.default_rng(0).geometric(h, size=20_000) - 1, tau)
    assert 100 * rmst(kaplan_meier(times.tolist(), (times < tau).tolist()), tau)[0] / tau == pytest.approx(
        share, abs=0.8
    )


@pytest.mark.parametrize(("times", "events"), [([], []), ([1], [True, False]), ([-1], [True])])
def test_impossible_times_are_refused(times: list[int], events: list[bool]) -> None:
    with pytest.raises(ValueError, match="time"):
        kaplan_meier(times, events)


def test_empty_budget_is_refused() -> None:
    with pytest.raises(ValueError, match="budget"):
        rmst(kaplan_meier([1], [True]), 0)
