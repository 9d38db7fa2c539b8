"""The composite: the oracle's harmonic means, joint resampling, bands and their probability."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refract.results import AxisResult, Composite, Estimate, Link, Sample, Status, Unit
from refract.stats.clusters import cluster_draws
from refract.stats.composite import composite, composite_difference, harmonic_mean, samples_needed
from refract.stats.estimate import score
from refract.stats.resample import Resampled, joint_ratio_draws, joint_score_draws

ORACLE: dict[str, Any] = json.loads((Path(__file__).parents[1] / "oracles/reference_values.json").read_text())
scores = st.lists(st.floats(0.0, 100.0), min_size=1, max_size=5)


def axis(
    name: str,
    values: Sequence[float],
    *,
    link: Link = "100*r",
    unit: Unit = "prompt",
    clusters: Sequence[str] | None = None,
    proportion: bool = False,
) -> AxisResult:
    ids = [f"{unit}{i:03}" for i in range(len(values))] if clusters is None else list(clusters)
    return AxisResult(
        axis=name,
        status="ok",
        score=score(link, values, [1.0] * len(values), ids, proportion=proportion),
        link=link,
        unit=unit,
        samples=tuple(
            Sample(id=str(i), cluster=c, numerator=float(v), denominator=1.0)
            for i, (c, v) in enumerate(zip(ids, values, strict=True))
        ),
    )


def skipped(name: str) -> AxisResult:
    return AxisResult(axis=name, status="not-run", score=None, reason="not asked for", link="100*r", unit="haystack")


def interval(found: Composite) -> tuple[float, float]:
    assert found.score is not None
    return found.score.low, found.score.high


RNG = np.random.default_rng(0)
PREFIX = RNG.beta(1.0, 0.6, 60).tolist()
KL = RNG.lognormal(-4.0, 0.6, 32).tolist()
DRIFT = RNG.normal(0.03, 0.1, 60).tolist()
AXES = [
    axis("trajectory", PREFIX),
    axis("kld", KL, link="100*exp(-r)", unit="window"),
    axis("plad", DRIFT, link="100*exp(-5*|r|)"),
]


@pytest.mark.parametrize("case", ORACLE["composite"], ids=lambda c: c["name"])
def test_harmonic_mean_oracle(case: dict[str, Any]) -> None:
    assert harmonic_mean(case["axes"]) == pytest.approx(case["composite"], abs=1e-6)


def test_harmonic_mean_by_hand_and_at_its_ends() -> None:
    assert harmonic_mean([100.0, 50.0]) == pytest.approx(200.0 / 3.0)
    assert harmonic_mean([100.0, 100.0, 100.0]) == 100.0
    assert harmonic_mean([0.0, 100.0]) == 0.0
    assert harmonic_mean([5e-324, 100.0]) == pytest.approx(0.0, abs=1e-300)
    with pytest.raises(ValueError, match="harmonic"):
        harmonic_mean([])
    with pytest.raises(ValueError, match="harmonic"):
        harmonic_mean([-1.0])


@given(scores, st.data())
def test_harmonic_mean_lies_within_its_values_and_is_monotone(x: list[float], data: st.DataObject) -> None:
    i = data.draw(st.integers(0, len(x) - 1))
    raised = [*x[:i], data.draw(st.floats(x[i], 100.0)), *x[i + 1 :]]
    assert min(x) <= harmonic_mean(x) <= max(x)
    assert harmonic_mean(x) <= harmonic_mean(raised) * (1 + 1e-12)


def test_value_is_the_harmonic_mean_of_the_ok_axes() -> None:
    found = composite([*AXES, skipped("rniah")])
    assert found.score is not None
    assert found.score.value == harmonic_mean([a.score.value for a in AXES if a.score])
    assert found.name == "REFRACT[trajectory+kld+plad]"
    assert found.score.low < found.score.value < found.score.high
    assert sum(found.band_probability.values()) == pytest.approx(1.0)
    assert (found.score.clusters, found.score.method) == (32, "joint-bootstrap")


@pytest.mark.parametrize(("axes", "why"), [([], "none is"), ([AXES[0], skipped("kld")], "only trajectory is")])
def test_fewer_than_two_axes_make_no_composite(axes: list[AxisResult], why: str) -> None:
    found = composite(axes)
    assert found.score is None
    assert found.reason is not None
    assert why in found.reason


@pytest.mark.parametrize(("status", "said"), [("failed", "rniah failed"), ("not-exercised", "rniah was not exercised")])
def test_an_axis_that_broke_withholds_the_composite_of_the_others(status: Status, said: str) -> None:
    good = [axis("trajectory", [1.0] * 8), axis("kld", [0.001] * 8, link="100*exp(-r)", unit="window")]
    assert composite(good).band == "EXCELLENT"
    found = composite([*good, replace(skipped("rniah"), status=status)])
    assert (found.score, found.band) == (None, None)
    assert found.reason == f"no composite: {said}"


def test_same_seed_same_interval_another_seed_nearly() -> None:
    assert composite(AXES, seed=3) == composite(AXES, seed=3)
    assert interval(composite(AXES, seed=3)) != interval(composite(AXES, seed=4))
    assert interval(composite(AXES, seed=3)) == pytest.approx(interval(composite(AXES, seed=4)), abs=1.0)


def test_without_variance_the_band_is_certain() -> None:
    same = [axis(name, [0.0] * 8, link="100*exp(-r)", unit="window") for name in ("kld", "other")]
    found = composite(same)
    assert interval(found) == (100.0, 100.0)
    assert (found.band, found.band_certain, found.band_probability["EXCELLENT"]) == ("EXCELLENT", True, 1.0)
    assert found.score is not None
    assert found.score.method == "no-variance"


@pytest.mark.parametrize(("prompts", "low"), [(4, 50.0), (24, 92.0), (128, 98.0)])
def test_prompts_that_are_all_identical_leave_doubt_by_their_number(prompts: int, low: float) -> None:
    found = composite([axis("trajectory", [1.0] * prompts), axis("kld", [0.0] * 8, link="100*exp(-r)", unit="window")])
    assert found.score is not None
    assert found.score.value == found.score.high == 100.0
    assert low < found.score.low < 100.0 - 50.0 / prompts
    assert found.band == "EXCELLENT"
    assert found.band_certain == (prompts > 4)


def test_a_zero_axis_makes_zero() -> None:
    found = composite([axis("trajectory", [0.0] * 8), AXES[1]])
    assert found.score is not None
    assert found.score.value == found.score.low == 0.0
    assert 0.0 < found.score.high < 60.0
    assert (found.band, found.band_certain) == ("FAIL", True)


def test_one_cluster_spans_everything() -> None:
    found = composite([AXES[0], axis("kld", [0.1, 0.2], link="100*exp(-r)", unit="window", clusters=["w", "w"])])
    assert interval(found) == (0.0, 100.0)
    assert not found.band_certain


def test_a_score_between_bands_is_borderline() -> None:
    edge = [
        axis(name, RNG.normal(0.8, 0.15, 30).clip(0, 1).tolist(), unit=u)
        for name, u in (("a", "prompt"), ("b", "window"))
    ]  # type: ignore[arg-type]
    found = composite(edge)
    assert not found.band_certain
    assert found.band_probability["PASS"] + found.band_probability["DEGRADED"] > 0.95


def test_few_perfect_retrievals_leave_room_below() -> None:
    hits = axis("rniah", [1.0] * 9, unit="haystack", proportion=True)
    calm = axis("trajectory", [1.0] * 8)
    assert interval(composite([calm, hits]))[0] < 90.0
    assert interval(composite([calm, hits]))[1] == 100.0


def test_axes_draw_from_their_own_confidence_curve() -> None:
    fitted = [Resampled.of_axis(a) for a in AXES]
    draws = joint_score_draws(fitted, seed=0, replicates=4000)
    for row, one in zip(draws, AXES, strict=True):
        assert one.score is not None
        low, high = np.quantile(row, [0.025, 0.975])
        assert low == pytest.approx(one.score.low, abs=0.05)
        assert high == pytest.approx(one.score.high, abs=0.05) or one.axis == "plad"


def test_every_replicate_draws_as_many_clusters_as_there_are() -> None:
    counts = cluster_draws(np.random.default_rng(0), 7, 400)
    assert counts.shape == (400, 7)
    assert (counts.sum(axis=1) == 7).all()
    assert counts.mean() == 1.0
    assert counts.var() == pytest.approx(6 / 7, rel=0.1)


def test_axes_of_one_unit_move_together() -> None:
    x = RNG.uniform(0, 1, 40)
    same, other = axis("a", x.tolist()), axis("b", (1 - x).tolist())
    apart = axis("c", x.tolist(), unit="window")
    draws = joint_score_draws([Resampled.of_axis(a) for a in (same, other, apart)], seed=1, replicates=2000)
    together = np.corrcoef(draws)
    assert together[0, 1] < -0.99
    assert abs(together[0, 2]) < 0.1


def test_a_cluster_that_an_axis_lacks_contributes_nothing_there() -> None:
    whole, part = axis("a", PREFIX), axis("b", PREFIX[:30])
    draws = joint_ratio_draws([Resampled.of_axis(a) for a in (whole, part)], seed=0, replicates=500)
    counts = cluster_draws(np.random.default_rng([0, zlib.crc32(b"prompt")]), 60, 500)
    expected = counts[:, :30] @ np.array(PREFIX[:30]) / counts[:, :30].sum(axis=1)
    np.testing.assert_allclose(draws[1], expected, rtol=1e-12)


def test_adding_an_axis_of_another_unit_leaves_the_draws_alone() -> None:
    one = joint_ratio_draws([Resampled.of_axis(AXES[0])], seed=5, replicates=50)
    two = joint_ratio_draws([Resampled.of_axis(a) for a in AXES[:2]], seed=5, replicates=50)
    np.testing.assert_array_equal(one[0], two[0])


def test_difference_of_a_candidate_with_itself_is_nothing() -> None:
    found = composite_difference(AXES, AXES)
    assert (found.value, found.low, found.high) == (0.0, 0.0, 0.0)


def test_difference_of_candidates_is_paired() -> None:
    worse = [axis("trajectory", [0.9 * v for v in PREFIX]), *AXES[1:]]
    found = composite_difference(AXES, worse)
    alone = composite(AXES).score
    assert alone is not None
    assert 0.0 < found.low < found.value < found.high
    assert found.high - found.low < 0.5 * (alone.high - alone.low)
    back = composite_difference(worse, AXES)
    assert (back.low, back.high) == pytest.approx((-found.high, -found.low))


@pytest.mark.parametrize("other", [AXES[:2], [AXES[0], skipped("kld"), AXES[2]]])
def test_composites_of_different_axes_do_not_compare(other: list[AxisResult]) -> None:
    with pytest.raises(ValueError, match="different axes"):
        composite_difference(AXES, other)


def test_samples_needed_shrinks_with_the_square_root() -> None:
    now = Estimate(value=80.0, low=76.0, high=84.0, n=300, clusters=60, method="wilson-t")
    assert samples_needed(now, 4.0) == 60
    assert samples_needed(now, 2.0) == 240
    assert samples_needed(now, 100.0) == 1
    with pytest.raises(ValueError, match="half width"):
        samples_needed(now, 0.0)
