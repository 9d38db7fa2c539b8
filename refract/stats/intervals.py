"""Confidence distributions: for a fitted ratio, the bound at any confidence, not only at 95 %.

A function here takes a fit and the t quantiles (M,) that belong to confidences u (M,), and returns the one-sided bounds
(M,) of the ratio at those confidences, increasing in u. The bounds at α/2 and 1 − α/2 are the usual interval; the whole
curve is what the composite draws from (confidence distributions: Xie & Singh 2013, Int. Stat. Rev. 81:3). Which form an
axis uses was chosen by simulation, see docs/statistics.md and tests/stats/test_coverage.py.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from refract.results import Link
from refract.stats.clusters import F64, RatioFit
from refract.stats.distributions import normal_grid, normal_quantile, student_t_grid, student_t_quantile

_LARGEST_LOG = 700.0  # exp of it is still finite
_UNSEEN_SHARE, _UNSEEN_EXCESS = 0.5, 0.2  # of the cluster that was perhaps not seen


def t_bounds(fit: RatioFit, t: F64) -> F64:
    """r + t · SE."""
    return fit.value + t * fit.se


def skew_t_bounds(fit: RatioFit, t: F64) -> F64:
    """r + t · SE, or Hall's bound where that lies further out: for differences that may be skewed either way."""
    plain, corrected = t_bounds(fit, t), _hall_bounds(fit, t)
    return np.where(t > 0.0, np.maximum(plain, corrected), np.minimum(plain, corrected))


def log_t_bounds(fit: RatioFit, t: F64) -> F64:
    """exp(log r + t · SE / r) for r > 0, and never tighter above r than the skewness-corrected bound.

    Means of heavy-tailed KL miss upwards: a sample without the rare large values has both a small mean and a small SE.
    Hall's cubic transformation of the t statistic corrects for the skewness seen (Hall 1992, J. R. Stat. Soc. B
    54:221); the larger of both upper bounds covers where either alone falls short.
    """
    logs = math.log(fit.value) + t * fit.se / fit.value
    bounds = np.exp(np.minimum(logs, _LARGEST_LOG))
    return np.where(t > 0.0, np.maximum(bounds, _hall_bounds(fit, t)), bounds)


def _hall_bounds(fit: RatioFit, t: F64) -> F64:
    """r − SE · g⁻¹(−t) with Hall's g(T) = T + aT² + a²T³/3 + a/2, a = skewness / (3 √G)."""
    a = fit.skewness / (3.0 * math.sqrt(fit.clusters))
    if abs(a) < 1e-9:
        return t_bounds(fit, t)
    return fit.value - fit.se * (np.cbrt(1.0 + 3.0 * a * (-t - a / 2.0)) - 1.0) / a


def wilson_bounds(value: float, size: float, z: F64) -> F64:
    """Wilson's score bounds of a proportion seen as `value` among `size` trials (Wilson 1927, JASA 22:209)."""
    square = z * z / size
    spread = z * np.sqrt(value * (1.0 - value) / size + square / (4.0 * size))
    return (value + square / 2.0 + spread) / (1.0 + square)


def with_one_more(fit: RatioFit, value: float) -> RatioFit:
    """The fit with one cluster more, as large as the others are on average, whose own ratio is `value`.

    What is rare was perhaps not seen among G clusters, and the spread of those that were seen says nothing of it. An
    interval that is no tighter than this one's allows for it (`tests/stats/test_coverage.py`); with many clusters, or
    ones that differ, it makes no difference.
    """
    groups = fit.clusters
    mean = (groups * fit.value + value) / (groups + 1)
    squares = fit.se**2 * groups * (groups - 1) + groups * (fit.value - mean) ** 2 + (value - mean) ** 2
    return replace(fit, value=mean, se=math.sqrt(squares / (groups * (groups + 1))), clusters=groups + 1)


def share_bounds(fit: RatioFit, t: F64) -> F64:
    """Wilson's bounds of a mean of values in [0, 1] at the effective size r(1−r) / SE² (Korn & Graubard 1998).

    Neither is tighter than with one cluster more that has half.
    """
    plain, wider = (_wilson_at_effective_size(each, t) for each in (fit, with_one_more(fit, _UNSEEN_SHARE)))
    return np.where(t > 0.0, np.maximum(plain, wider), np.minimum(plain, wider))


def _wilson_at_effective_size(fit: RatioFit, t: F64) -> F64:
    value = min(max(fit.value, 0.0), 1.0)
    if fit.se == 0.0 or not 0.0 < value < 1.0:
        return np.full_like(t, value)
    return wilson_bounds(value, value * (1.0 - value) / fit.se**2, t)


def excess_bounds(fit: RatioFit, t: F64) -> F64:
    """Bounds of |r|, in the direction of r: |r| + t · SE, which below reaches down to 0 and not through it.

    The upper is no tighter than with one cluster more whose |r| is a clear one.
    """
    own = replace(fit, value=abs(fit.value))
    plain, wider = t_bounds(own, t), t_bounds(with_one_more(own, _UNSEEN_EXCESS), t)
    return np.where(t > 0.0, np.maximum(plain, wider), plain)


def trials_bounds(fit: RatioFit, t: F64, z: F64) -> F64:
    """Wilson's bounds of a proportion of hits, widened by the design effect where trials share clusters.

    With every trial its own cluster, or all alike, this is the classic interval: n trials and normal quantiles.
    """
    value = min(max(fit.value, 0.0), 1.0)
    if fit.clusters == fit.n or fit.se == 0.0:
        return wilson_bounds(value, fit.n, z)
    size = value * (1.0 - value) / fit.se**2
    return wilson_bounds(value, size, t) if size < fit.n else wilson_bounds(value, fit.n, z)


def unseen_points(link: Link, fit: RatioFit, level: float) -> float:
    """By how many points of score a difference may be off where every cluster of one side agrees; 0 for KL.

    A bootstrap of such a side draws the same replicate each time. The bound is that of `with_one_more`.
    """
    if link == "100*exp(-r)" or fit.clusters == 1 or fit.se > 0.0:
        return 0.0
    alike = replace(fit, value=0.0)
    more = with_one_more(alike, _UNSEEN_SHARE if link == "100*r" else _UNSEEN_EXCESS)
    bound = more.value + both_tails(level, alike.df)[0][1] * more.se
    return abs(link_score(link, 0.0) - link_score(link, bound))


def apply_link(link: Link, ratios: F64) -> F64:
    """Scores from 0 to 100 of the ratios, elementwise.

    For "100*exp(-5*|r|)" the ratios are bounds of |r|: one below 0 stands for |r| = 0.
    """
    if link == "100*r":
        return 100.0 * np.clip(ratios, 0.0, 1.0)
    rate = {"100*exp(-r)": 1.0, "100*exp(-5*|r|)": 5.0}[link]
    return 100.0 * np.exp(-rate * np.maximum(ratios, 0.0))


def link_score(link: Link, ratio: float) -> float:
    """The score of one ratio: 100 at the reference's own value, clipped to [0, 100]."""
    aligned = abs(ratio) if link == "100*exp(-5*|r|)" else ratio
    return float(apply_link(link, np.array([aligned]))[0])


def score_method(link: Link, fit: RatioFit, *, proportion: bool) -> str:
    """Which interval belongs to this link and fit; see `score_bounds`."""
    if fit.clusters == 1:
        return "one-cluster"
    if proportion:
        return "wilson"
    if link == "100*r":
        return "wilson-t"
    if link == "100*exp(-5*|r|)":
        return "cr1-t"
    if fit.se == 0.0:
        return "no-variance"
    return "cr1-log-t" if fit.value > 0.0 else "cr1-t"


def score_bounds(link: Link, fit: RatioFit, method: str, t: F64, z: F64) -> F64:
    """Score bounds (M,) at the confidences of the ratio whose quantiles are t (Student) and z (normal)."""
    if method == "wilson":
        return apply_link(link, trials_bounds(fit, t, z))
    if method == "wilson-t":
        return apply_link(link, share_bounds(fit, t))
    if method == "cr1-log-t":
        return apply_link(link, log_t_bounds(fit, t))
    if method == "no-variance":
        return np.full_like(t, link_score(link, fit.value))
    if link == "100*exp(-5*|r|)":
        return apply_link(link, excess_bounds(fit, t))
    return apply_link(link, t_bounds(fit, t))


def both_tails(level: float, df: int) -> tuple[F64, F64]:
    """(t, z) quantiles (2,) at α/2 and 1 − α/2 for a two-sided interval of confidence `level`."""
    if not 0.0 < level < 1.0:
        raise ValueError(f"a confidence level lies between 0 and 1, found {level}")
    upper = 0.5 * (1.0 + level)
    t, z = student_t_quantile(upper, df), normal_quantile(upper)
    return np.array([-t, t]), np.array([-z, z])


def grid_quantiles(size: int, df: int) -> tuple[F64, F64]:
    """(t, z) quantiles (size,) at the confidences (j + ½) / size."""
    return student_t_grid(size, df), normal_grid(size)
