"""Comparisons of candidates on the same samples, and over many candidates."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from refract.results import Estimate, Link, Sample
from refract.stats.estimate import ratio
from refract.stats.paired import (
    holm,
    mcnemar_exact,
    non_inferior,
    paired_log_ratio,
    paired_ratio_difference,
    paired_score_difference,
    tie_groups,
)

LINKS: list[Link] = ["100*r", "100*exp(-r)", "100*exp(-5*|r|)"]
shares = st.lists(st.floats(0.0, 1.0), min_size=2, max_size=20)


def ids(n: int) -> list[str]:
    return [f"c{i:03}" for i in range(n)]


def samples(values: list[float]) -> list[Sample]:
    return [
        Sample(id=c, cluster=c, numerator=v, denominator=1.0) for c, v in zip(ids(len(values)), values, strict=True)
    ]


def test_difference_of_means_is_the_paired_t_interval() -> None:
    a, b, one = [1.0, 2.0, 4.0, 9.0], [0.5, 2.5, 3.0, 6.0], [1.0] * 4
    found = paired_ratio_difference(a, one, b, one, clusters=ids(4))
    expected = stats.ttest_rel(a, b).confidence_interval()
    assert found.low == pytest.approx(expected.low, rel=1e-10)
    assert found.high >= expected.high - 1e-10  # the differences .5, -.5, 1, 3 are skewed upwards
    assert (found.value, found.method) == (1.0, "paired-cr1-t")


def test_difference_of_ratios_by_hand() -> None:
    # r_A = 3/4, residuals .25, -.25 over 4; r_B = 1/3, residuals 2/3, -2/3 over 3; var = 2 * 2 * (.0625 - .2222)^2
    found = paired_ratio_difference([1, 2], [1, 3], [1, 0], [1, 2], clusters=ids(2))
    half = 2 * abs(0.25 / 4 - 2 / 9) * stats.t.ppf(0.975, 1)
    assert (found.value, found.high - found.value) == pytest.approx((0.75 - 1 / 3, half), rel=1e-10)


def test_the_side_without_a_long_tail_keeps_its_t_bound() -> None:
    a, b, one = [1.0, 2.0, 3.0, 4.0, 5.0], [0.5, 1.0, 2.0, 3.0, 4.5], [1.0] * 5
    found, expected = paired_ratio_difference(a, one, b, one, clusters=ids(5)), stats.ttest_rel(a, b)
    assert stats.skew(np.subtract(a, b)) < 0.0
    assert found.high == pytest.approx(expected.confidence_interval().high, rel=1e-10)
    assert found.low <= expected.confidence_interval().low


def test_what_both_share_cancels() -> None:
    rng = np.random.default_rng(0)
    hard = rng.lognormal(size=32)
    a, b, one = 1.1 * hard, hard, np.ones(32)
    paired = paired_ratio_difference(a.tolist(), one.tolist(), b.tolist(), one.tolist(), clusters=ids(32))
    alone = ratio(a.tolist(), one.tolist(), clusters=ids(32))
    assert paired.low > 0.0
    assert paired.high - paired.low < 0.2 * (alone.high - alone.low)


def test_a_constant_difference_has_no_width() -> None:
    found = paired_ratio_difference([0.1, 0.2], [1, 1], [0.3, 0.4], [1, 1], clusters=ids(2))
    assert (found.low, found.high, found.method) == (found.value, found.value, "no-variance")


def test_log_ratio_of_proportional_values_is_exact() -> None:
    b = [0.1, 0.3, 0.2, 0.7]
    found = paired_log_ratio([2 * v for v in b], [1.0] * 4, b, [1.0] * 4, clusters=ids(4), replicates=200)
    assert (found.low, found.value, found.high) == pytest.approx((math.log(2),) * 3)


@given(st.lists(st.tuples(st.floats(0.01, 1.0), st.floats(0.01, 1.0)), min_size=2, max_size=12))
def test_log_ratio_changes_sign_with_the_sides(pairs: list[tuple[float, float]]) -> None:
    a, b, one = [p[0] for p in pairs], [p[1] for p in pairs], [1.0] * len(pairs)
    forth = paired_log_ratio(a, one, b, one, clusters=ids(len(a)), replicates=100)
    back = paired_log_ratio(b, one, a, one, clusters=ids(len(a)), replicates=100)
    assert (forth.value, forth.low, forth.high) == pytest.approx((-back.value, -back.high, -back.low), abs=1e-9)


def test_pairs_need_two_clusters_and_positive_ratios() -> None:
    with pytest.raises(ValueError, match="one cluster"):
        paired_ratio_difference([1], [1], [1], [1], clusters=["a"])
    with pytest.raises(ValueError, match="positive"):
        paired_log_ratio([0, 0], [1, 1], [1, 1], [1, 1], clusters=ids(2))
    with pytest.raises(ValueError, match="two or more"):
        paired_log_ratio([1], [1], [1], [1], clusters=["a"])


@pytest.mark.parametrize("link", LINKS)
def test_equal_candidates_differ_by_exactly_nothing(link: Link) -> None:
    same = samples([0.1, 0.5, 0.3, 0.9])
    found = paired_score_difference(link, same, same, replicates=200)
    assert (found.value, found.low, found.high, found.method) == (0.0, 0.0, 0.0, "no-variance")


def test_candidates_identical_everywhere_differ_by_no_more_than_one_could_not_see() -> None:
    """24 prompts and one more of .5: mean .02 and SE .02, at the t of 23 degrees of freedom."""
    ones = samples([1.0] * 24)
    found = paired_score_difference("100*r", ones, ones, replicates=200)
    bound = 100.0 * 0.02 * (1.0 + 2.068658)
    assert (found.value, found.low, found.high) == pytest.approx((0.0, -bound, bound), rel=1e-6)
    assert found.method == "paired-bootstrap"
    nothing = paired_score_difference("100*exp(-r)", samples([0.0] * 24), samples([0.0] * 24), replicates=200)
    assert (nothing.low, nothing.high, nothing.method) == (0.0, 0.0, "no-variance")


@pytest.mark.parametrize("link", LINKS)
@given(shares)
def test_score_difference_is_antisymmetric_and_bounded(link: Link, x: list[float]) -> None:
    a, b = samples(x), samples(x[::-1])
    forth, back = (paired_score_difference(link, *pair, replicates=60) for pair in ((a, b), (b, a)))
    assert (forth.value, forth.low, forth.high) == pytest.approx((-back.value, -back.high, -back.low), abs=1e-9)
    assert -100.0 <= forth.low <= forth.value <= forth.high <= 100.0


def test_a_clear_difference_excludes_zero_and_a_blurred_one_does_not() -> None:
    rng = np.random.default_rng(4)
    base = rng.uniform(0.3, 0.6, 40)
    better, noisy = base + 0.2 + rng.normal(0, 0.02, 40), base + rng.normal(0, 0.1, 40)
    assert paired_score_difference("100*r", samples(better.tolist()), samples(base.tolist())).low > 0.0
    blurred = paired_score_difference("100*r", samples(noisy.tolist()), samples(base.tolist()))
    assert blurred.low < 0.0 < blurred.high


def test_only_shared_samples_are_compared() -> None:
    a, b = samples([0.5, 0.6, 0.7]), samples([0.4, 0.7])
    found = paired_score_difference("100*r", a, b, replicates=100)
    assert (found.n, found.value) == (2, pytest.approx(0.0, abs=1e-9))
    with pytest.raises(ValueError, match="share no samples"):
        paired_score_difference("100*r", a[2:], b)


def test_one_shared_cluster_says_nothing() -> None:
    found = paired_score_difference("100*r", samples([0.5]), samples([0.4]))
    assert (found.low, found.high, found.method) == (-100.0, 100.0, "one-cluster")


@given(st.integers(0, 40), st.integers(0, 40))
def test_mcnemar_is_the_exact_binomial_test(b: int, c: int) -> None:
    expected = stats.binomtest(b, b + c).pvalue if b + c else 1.0
    assert mcnemar_exact(b, c) == pytest.approx(expected, rel=1e-9)


def test_significance_needs_six_on_one_side() -> None:
    assert mcnemar_exact(0, 5) > 0.05 > mcnemar_exact(0, 6)
    with pytest.raises(ValueError, match="counts"):
        mcnemar_exact(-1, 2)


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []
    assert holm([0.9, 0.8]) == [1.0, 1.0]


@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_keeps_order_and_never_lowers_a_p_value(p: list[float]) -> None:
    adjusted = holm(p)
    assert all(a >= raw and a <= 1.0 for a, raw in zip(adjusted, p, strict=True))
    ranked = [a for _, a in sorted(zip(p, adjusted, strict=True))]
    assert ranked == sorted(ranked)


def test_tie_groups_merge_neighbours() -> None:
    ties = {("q8", "q5"), ("q4", "turbo3")}
    found = tie_groups(["turbo3", "q8", "q4", "q5"], [70.0, 99.0, 71.0, 98.9], lambda a, b: (a, b) in ties)
    assert found == [["q8", "q5"], ["q4", "turbo3"]]
    assert tie_groups([], [], lambda a, b: True) == []


def test_equal_scores_keep_the_order_given() -> None:
    assert tie_groups(["b", "a"], [1.0, 1.0], lambda a, b: False) == [["b"], ["a"]]


@pytest.mark.parametrize(("low", "claim"), [(-0.5, True), (-1.0, False), (-3.0, False), (0.5, True)])
def test_non_inferiority_needs_the_whole_interval_above_the_margin(low: float, claim: bool) -> None:
    difference = Estimate(value=1.0, low=low, high=3.0, n=9, clusters=9, method="paired-cr1-t")
    assert non_inferior(difference, 1.0) is claim
    with pytest.raises(ValueError, match="margin"):
        non_inferior(difference, 0.0)
