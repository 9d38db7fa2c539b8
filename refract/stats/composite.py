"""The composite score: harmonic mean of the axes that are ok, its interval, and the probability of each band."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from refract.results import BAND_FLOORS, AxisResult, Composite, Estimate
from refract.stats.bands import band
from refract.stats.clusters import F64
from refract.stats.intervals import link_score, unseen_points
from refract.stats.resample import Resampled, difference_interval, joint_score_draws, paired_scores

__all__ = ["band", "composite", "composite_difference", "harmonic_mean", "samples_needed"]

_BROKEN = {"failed": "failed", "not-exercised": "was not exercised"}
CERTAIN = 0.8  # a band with less probability than this is printed as borderline


def harmonic_mean(values: Sequence[float]) -> float:
    """n / Σ 1/v of nonnegative values, and 0 if any of them is 0. Raises: ValueError for none or a negative one."""
    if not values or min(values) < 0.0:
        raise ValueError(f"a harmonic mean needs values of 0 or more, found {list(values)}")
    return float(_harmonic(np.array(values, dtype=np.float64)[:, None])[0])


def _harmonic(scores: F64) -> F64:
    """Harmonic means (B,) over the first axis of scores (A, B)."""
    with np.errstate(divide="ignore", over="ignore"):
        means = len(scores) / np.sum(1.0 / scores, axis=0)
    clipped: F64 = np.clip(means, scores.min(axis=0), scores.max(axis=0))
    return clipped


def composite(axes: Sequence[AxisResult], *, seed: int = 0, replicates: int = 2000, level: float = 0.95) -> Composite:
    """The harmonic mean of the axes with status ok, or the reason why there is none.

    There is none where fewer than two are ok, and where one failed or was not exercised: what the others say would read
    as a verdict on all. Axes that are low-confidence or were not run are left out.

    Interval: percentiles of the harmonic mean over joint draws of the axes' scores (`resample.joint_score_draws`),
    method "joint-bootstrap"; "one-cluster" and the whole range if an axis rests on one cluster alone; "no-variance" and
    width 0 if no axis varies. A band is certain when at least 0.8 of the draws fall into it. Deterministic for a seed.
    """
    usable = [axis for axis in axes if axis.status == "ok"]
    names = tuple(axis.axis for axis in usable)
    broken = [f"{axis.axis} {_BROKEN[axis.status]}" for axis in axes if axis.status in _BROKEN]
    if broken and usable:
        return Composite(score=None, reason=f"no composite: {' and '.join(broken)}", axes=names)
    if len(usable) < 2:
        found = f"only {names[0]} is" if names else "none is"
        return Composite(score=None, reason=f"a composite needs two axes that are ok, {found}", axes=names)
    fitted = [Resampled.of_axis(axis) for axis in usable]
    draws = _harmonic(joint_score_draws(fitted, seed=seed, replicates=replicates))
    value = harmonic_mean([axis.score.value for axis in usable if axis.score is not None])
    own, chances = band(value), _band_probability(draws)
    return Composite(
        score=_interval(fitted, value, draws, level),
        band=own,
        band_certain=chances[own] >= CERTAIN,
        band_probability=chances,
        axes=names,
    )


def composite_difference(
    a: Sequence[AxisResult], b: Sequence[AxisResult], *, seed: int = 0, replicates: int = 2000, level: float = 0.95
) -> Estimate:
    """Composite of `a` minus composite of `b`, two candidates over the same prompts and windows, paired.

    Positive means that `a` is closer to the reference. Method "paired-bootstrap" (`resample.difference_interval`).

    Raises: ValueError unless both have the same two or more axes ok.
    """
    left = {axis.axis: axis for axis in a if axis.status == "ok"}
    right = {axis.axis: axis for axis in b if axis.status == "ok"}
    if left.keys() != right.keys() or len(left) < 2:
        raise ValueError(f"composites of different axes do not compare: {sorted(left)} and {sorted(right)}")
    pairs = [[side[name] for name in sorted(left)] for side in (left, right)]
    fitted = [Resampled.of_axis(axis) for side in pairs for axis in side]
    scores = paired_scores(fitted, level=level, seed=seed, replicates=replicates)
    values = [harmonic_mean([axis.score.value for axis in side if axis.score is not None]) for side in pairs]
    differences = _harmonic(scores[: len(left)]) - _harmonic(scores[len(left) :])
    unseen = max(_unseen(side, level) for side in (fitted[: len(left)], fitted[len(left) :]))
    return difference_interval(fitted, values[0] - values[1], differences, level, unseen=unseen)


def _unseen(side: Sequence[Resampled], level: float) -> float:
    """How far the composite would fall, were each axis lower by what its clusters cannot have shown."""
    scores = [link_score(axis.link, axis.fit.value) for axis in side]
    missed = [unseen_points(axis.link, axis.fit, level) for axis in side]
    lower = [max(0.0, score - points) for score, points in zip(scores, missed, strict=True)]
    return harmonic_mean(scores) - harmonic_mean(lower)


def _interval(fitted: Sequence[Resampled], value: float, draws: F64, level: float) -> Estimate:
    methods = {axis.method for axis in fitted}
    low, high = map(float, np.quantile(draws, [(1.0 - level) / 2.0, (1.0 + level) / 2.0]))
    if "one-cluster" in methods:
        method, low, high = "one-cluster", 0.0, 100.0
    elif methods == {"no-variance"}:
        method, low, high = "no-variance", value, value
    else:
        method = "joint-bootstrap"
    return Estimate(
        value=value,
        low=min(low, value),
        high=max(high, value),
        level=level,
        n=sum(axis.fit.n for axis in fitted),
        clusters=min(axis.fit.clusters for axis in fitted),
        method=method,
    )


def _band_probability(draws: F64) -> dict[str, float]:
    """The share of draws in each band, which add up to 1."""
    floors = list(BAND_FLOORS.items())
    reached = [int(np.sum(np.round(draws, 9) >= floor)) for _, floor in floors]
    return {
        name: (count - above) / len(draws)
        for (name, _), count, above in zip(floors, reached, [0, *reached], strict=False)
    }


def samples_needed(estimate: Estimate, half_width: float) -> int:
    """How many clusters would bring the interval to ± `half_width`, its width shrinking as 1/√clusters.

    Raises: ValueError unless `half_width` is positive.
    """
    if not half_width > 0.0:
        raise ValueError(f"a half width is positive, found {half_width}")
    now = (estimate.high - estimate.low) / 2.0
    return max(1, math.ceil(estimate.clusters * (now / half_width) ** 2 - 1e-9))
