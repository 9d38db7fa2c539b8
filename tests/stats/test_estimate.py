"""Means, ratios and axis scores: identity, worst, hand-computed and monotone cases, and the oracle's values."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from refract.results import Estimate, Link
from refract.stats.bands import band
from refract.stats.clusters import cluster_sums, fit_ratio
from refract.stats.estimate import mean, ratio, score
from refract.stats.intervals import link_score

ORACLE: dict[str, Any] = json.loads((Path(__file__).parents[1] / "oracles/reference_values.json").read_text())
LINKS: list[Link] = ["100*r", "100*exp(-r)", "100*exp(-5*|r|)"]
values = st.lists(st.floats(0.0, 1.0), min_size=2, max_size=40)


def ids(n: int) -> list[str]:
    return [f"c{i:03}" for i in range(n)]


def interval(e: Estimate) -> tuple[float, float]:
    return e.low, e.high


def test_mean_of_singletons_is_the_t_interval() -> None:
    x = [1.0, 2.0, 4.0, 9.0]
    found = mean(x, ids(4))
    expected = stats.t.interval(0.95, 3, loc=np.mean(x), scale=stats.sem(x))
    assert found.value == 4.0
    assert interval(found) == pytest.approx(expected, rel=1e-10)
    assert (found.n, found.clusters, found.method) == (4, 4, "cr1-t")


def test_clustered_mean_by_hand() -> None:
    # clusters a: 0, 2 and b: 4, 6; mean 3, residual sums -4 and 4; var = 2/1 * (16 + 16) / 16 = 4
    found = mean([0.0, 2.0, 4.0, 6.0], ["a", "a", "b", "b"], level=0.9)
    half = 2.0 * stats.t.ppf(0.95, 1)
    assert (found.value, found.level, found.clusters) == (3.0, 0.9, 2)
    assert interval(found) == pytest.approx((3.0 - half, 3.0 + half), rel=1e-10)


def test_ratio_by_hand() -> None:
    # r = 6/8; residuals 1 - .75*2 = -.5, 2 - .75*2 = .5, 3 - .75*4 = 0; var = 3/2 * .5 / 64
    found = ratio([1.0, 2.0, 3.0], [2.0, 2.0, 4.0], clusters=ids(3))
    half = math.sqrt(1.5 * 0.5 / 64) * stats.t.ppf(0.975, 2)
    assert interval(found) == pytest.approx((0.75 - half, 0.75 + half), rel=1e-10)


def test_log_scale_interval_by_hand() -> None:
    found = ratio([1.0, 2.0, 3.0], [2.0, 2.0, 4.0], clusters=ids(3), log_scale=True)  # residuals without skewness
    step = math.sqrt(1.5 * 0.5 / 64) / 0.75 * stats.t.ppf(0.975, 2)
    assert interval(found) == pytest.approx((0.75 * math.exp(-step), 0.75 * math.exp(step)), rel=1e-10)
    assert found.method == "cr1-log-t"


def test_log_scale_is_wider_above_for_skewed_values_only() -> None:
    skewed = [0.01] * 20 + [0.02] * 8 + [0.1, 0.5]
    found, fit = mean(skewed, ids(30), log_scale=True), fit_ratio(cluster_sums(skewed, [1.0] * 30, ids(30)))
    step = fit.se / fit.value * stats.t.ppf(0.975, 29)
    assert found.low == pytest.approx(fit.value * math.exp(-step), rel=1e-10)
    assert found.high > fit.value * math.exp(step)
    assert fit.skewness == pytest.approx(stats.skew(skewed, bias=False), rel=1e-10)


@given(values)
def test_log_scale_never_goes_below_zero(x: list[float]) -> None:
    found = mean(x, ids(len(x)), log_scale=True)
    assert 0.0 <= found.low <= found.value <= found.high


def test_log_scale_of_zero_and_of_rounding_noise_below_zero() -> None:
    assert interval(mean([0.0] * 5, ids(5), log_scale=True)) == (0.0, 0.0)
    noise = mean([-1e-9, 0.0, -2e-9], ids(3), log_scale=True)
    assert noise.method == "cr1-t"
    assert noise.low < noise.value < noise.high


def test_equal_values_have_no_width_whatever_rounding_does() -> None:
    found = mean([0.1] * 7, ids(7))
    assert interval(found) == (found.value, found.value)
    assert found.method == "no-variance"


def test_one_cluster_is_never_narrow() -> None:
    with pytest.raises(ValueError, match="one cluster"):
        mean([0.1, 0.2], ["a", "a"])
    assert interval(mean([0.1, 0.2], ["a", "a"], bounds=(0.0, 1.0))) == (0.0, 1.0)
    for link in LINKS:
        found = score(link, [0.1, 0.2], [1.0, 1.0], ["a", "a"])
        assert (found.low, found.high, found.method) == (0.0, 100.0, "one-cluster")


def test_bounds_clip_the_interval() -> None:
    assert interval(mean([0.0, 1.0], ids(2), bounds=(0.0, 1.0))) == (0.0, 1.0)


def test_empty_samples_do_not_count() -> None:
    found = ratio([1.0, 0.0, 0.0], [1.0, 1.0, 0.0], clusters=ids(3))
    assert (found.value, found.n, found.clusters) == (0.5, 2, 2)


@pytest.mark.parametrize(
    ("top", "bottom", "clusters", "why"),
    [
        ([], [], [], "no measurement"),
        ([0.0], [0.0], ["a"], "no measurement"),
        ([1.0, math.nan], [1.0, 1.0], ["a", "b"], "finite"),
        ([1.0, 1.0], [1.0, math.inf], ["a", "b"], "finite"),
        ([1.0, 1.0], [1.0, 0.0], ["a", "b"], "denominators"),
        ([1.0, 1.0], [1.0, -1.0], ["a", "b"], "denominators"),
        ([1.0, 1.0], [1.0, 1.0], ["a"], "one cluster per sample"),
    ],
)
def test_what_is_not_a_measurement_is_refused(
    top: list[float], bottom: list[float], clusters: list[str], why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        ratio(top, bottom, clusters=clusters)


def test_level_outside_its_range_is_refused() -> None:
    with pytest.raises(ValueError, match="level"):
        mean([1.0, 2.0], ids(2), level=1.0)


@given(values, st.randoms(use_true_random=False))
def test_order_of_samples_does_not_matter(x: list[float], random: Any) -> None:
    clusters = [f"c{i % 5}" for i in range(len(x))]
    pairs = list(zip(x, clusters, strict=True))
    random.shuffle(pairs)
    a, b = mean(x, clusters), mean([v for v, _ in pairs], [c for _, c in pairs])
    assert (a.value, a.low, a.high) == pytest.approx((b.value, b.low, b.high), rel=1e-9, abs=1e-9)


def test_copies_within_a_cluster_add_no_information() -> None:
    x = [0.1, 0.4, 0.7, 0.9]
    once, thrice = mean(x, ids(4)), mean(np.repeat(x, 3).tolist(), np.repeat(ids(4), 3).tolist())
    assert interval(once) == pytest.approx(interval(thrice), rel=1e-12)


@pytest.mark.parametrize("link", LINKS)
def test_identity_scores_100_and_the_worst_0(link: Link) -> None:
    perfect = 1.0 if link == "100*r" else 0.0
    found = score(link, [perfect] * 6, [1.0] * 6, ids(6))
    assert (found.value, found.high) == (100.0, 100.0)
    worst = 0.0 if link == "100*r" else 1000.0
    assert score(link, [worst] * 6, [1.0] * 6, ids(6)).value == pytest.approx(0.0, abs=1e-12)


def test_identical_samples_have_an_interval_by_hand() -> None:
    """Six and one more: shares of mean 6.5 / 7 and SE² .21429 / 42, excesses of mean .2 / 7 and SE the same."""
    t = 2.570582
    share = score("100*r", [1.0] * 6, [1.0] * 6, ids(6))
    r, size = 6.5 / 7, 13.0  # r (1 − r) / SE²
    spread = t * math.sqrt(r * (1 - r) / size + t * t / (4 * size * size))
    low = (r + t * t / (2 * size) - spread) / (1 + t * t / size)
    assert (share.low, share.method) == (pytest.approx(100 * low, rel=1e-6), "wilson-t")
    excess = score("100*exp(-5*|r|)", [0.0] * 6, [1.0] * 6, ids(6))
    assert (excess.low, excess.method) == (pytest.approx(100 * math.exp(-5 * (1 + t) * 0.2 / 7), rel=1e-6), "cr1-t")
    assert interval(score("100*exp(-r)", [0.0] * 6, [1.0] * 6, ids(6))) == (100.0, 100.0)


@pytest.mark.parametrize("link", LINKS)
def test_more_samples_that_agree_say_more(link: Link) -> None:
    perfect = 1.0 if link == "100*r" else 0.0
    lows = [score(link, [perfect] * n, [1.0] * n, ids(n)).low for n in (2, 3, 8, 24, 96, 1000)]
    assert lows == sorted(lows)
    assert lows[-1] > 99.0


@given(values)
def test_scores_contain_their_value_within_0_and_100(x: list[float]) -> None:
    for link in LINKS:
        found = score(link, x, [1.0] * len(x), ids(len(x)))
        assert 0.0 <= found.low <= found.value <= found.high <= 100.0


@given(st.floats(0.0, 5.0), st.floats(0.0, 5.0))
def test_links_are_monotone(a: float, b: float) -> None:
    small, large = sorted((a, b))
    assert link_score("100*r", small) <= link_score("100*r", large)
    assert link_score("100*exp(-r)", small) >= link_score("100*exp(-r)", large)
    assert link_score("100*exp(-5*|r|)", -small) >= link_score("100*exp(-5*|r|)", large)


@pytest.mark.parametrize("case", ORACLE["kld_score"], ids=lambda c: str(c["mean_kld"]))
def test_kld_score_oracle(case: dict[str, float]) -> None:
    assert score("100*exp(-r)", [case["mean_kld"]] * 3, [1.0] * 3, ids(3)).value == pytest.approx(
        case["score"], rel=1e-12
    )


@pytest.mark.parametrize("case", ORACLE["plad_score"], ids=lambda c: str(c["excess"]))
def test_plad_score_oracle(case: dict[str, float]) -> None:
    found = score("100*exp(-5*|r|)", [case["excess"]] * 3, [1.0] * 3, ids(3)).value
    # The oracle clips a negative excess at 0; here a mean below 0 is drift as well.
    expected = case["score"] if case["excess"] >= 0 else 100.0 * math.exp(5.0 * case["excess"])
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("case", ORACLE["bands"], ids=lambda c: str(c["s"]))
def test_band_oracle(case: dict[str, Any]) -> None:
    assert band(case["s"]) == case["band"]


@pytest.mark.parametrize("value", [-0.1, 100.1, math.nan])
def test_bands_outside_the_scale_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="0 to 100"):
        band(value)


def test_band_forgives_a_rounding_error() -> None:
    assert band(90.0 - 1e-13) == "EXCELLENT"
    assert band(90.0 - 1e-6) == "PASS"


def test_kl_score_interval_is_the_mapped_interval_of_the_mean() -> None:
    kl = [0.01, 0.05, 0.02, 0.2, 0.03]
    m, s = mean(kl, ids(5), log_scale=True), score("100*exp(-r)", kl, [1.0] * 5, ids(5))
    assert interval(s) == pytest.approx((100 * math.exp(-m.high), 100 * math.exp(-m.low)), rel=1e-12)


def test_plad_interval_that_straddles_zero_reaches_100() -> None:
    e = [-0.6, 0.6, 0.3, -0.2] * 6
    m, s = mean(e, ids(24)), score("100*exp(-5*|r|)", e, [1.0] * 24, ids(24))
    assert m.low < 0 < m.high
    assert interval(s) == pytest.approx((100 * math.exp(-5 * max(-m.low, m.high)), 100.0), rel=1e-12)


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_plad_interval_away_from_zero_is_mapped_from_either_side(sign: float) -> None:
    e = [0.1, 0.32, 0.21, 0.09] * 6
    m, s = mean(e, ids(24)), score("100*exp(-5*|r|)", [sign * v for v in e], [1.0] * 24, ids(24))
    assert interval(s) == pytest.approx((100 * math.exp(-5 * m.high), 100 * math.exp(-5 * m.low)), rel=1e-12)


def test_share_interval_is_wilson_at_the_effective_size() -> None:
    x = [1.0, 1.0, 0.5, 1.0, 0.25, 1.0, 1.0, 0.75]
    fit, t = fit_ratio(cluster_sums(x, [1.0] * 8, ids(8))), stats.t.ppf(0.975, 7)
    found = score("100*r", x, [1.0] * 8, ids(8))
    for end in interval(found):  # Wilson's ends solve |r - p| = t * sqrt(p (1 - p) / n)
        p, size = end / 100, fit.value * (1 - fit.value) / fit.se**2
        assert abs(fit.value - p) == pytest.approx(t * math.sqrt(p * (1 - p) / size), rel=1e-9)


def test_hits_get_the_classic_wilson_interval() -> None:
    hits = [1.0] * 8 + [0.0]
    found = score("100*r", hits, [1.0] * 9, ids(9), proportion=True)
    expected = stats.binomtest(8, 9).proportion_ci(method="wilson")
    assert interval(found) == pytest.approx((100 * expected.low, 100 * expected.high), rel=1e-9)
    assert found.method == "wilson"


def test_all_hits_are_not_certainty() -> None:
    found = score("100*r", [1.0] * 9, [1.0] * 9, ids(9), proportion=True)
    assert found.low == pytest.approx(70.085, abs=1e-3)
    assert found.high == 100.0


def test_hits_that_share_haystacks_count_less() -> None:
    hits, haystacks = [1.0] * 12 + [0.0] * 4, [f"h{i // 4}" for i in range(16)]
    alone, shared = (score("100*r", hits, [1.0] * 16, c, proportion=True) for c in (ids(16), haystacks))
    assert shared.low < alone.low
    assert shared.high >= alone.high


def test_uninformative_trials_are_left_out() -> None:
    found = score("100*r", [1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0], ids(4), proportion=True)
    assert (found.n, round(found.value, 3)) == (3, 66.667)
