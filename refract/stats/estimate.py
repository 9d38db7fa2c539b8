"""Means, ratios and axis scores with cluster-robust intervals; quantiles and rates are re-exported from their files."""

from __future__ import annotations

from collections.abc import Sequence

from refract.results import Estimate, Link
from refract.stats.clusters import RatioFit, cluster_sums, fit_ratio
from refract.stats.intervals import both_tails, link_score, log_t_bounds, score_bounds, score_method, t_bounds
from refract.stats.quantiles import quantiles
from refract.stats.rates import clustered_rate, poisson_rate, wilson

__all__ = ["clustered_rate", "mean", "poisson_rate", "quantiles", "ratio", "score", "wilson"]


def mean(
    values: Sequence[float],
    clusters: Sequence[str],
    *,
    level: float = 0.95,
    log_scale: bool = False,
    bounds: tuple[float, float] | None = None,
) -> Estimate:
    """The mean of `values`; see `ratio`, of which it is the case of denominators 1."""
    ones = [1.0] * len(values)
    return ratio(values, ones, clusters=clusters, level=level, log_scale=log_scale, bounds=bounds)


def ratio(
    numerators: Sequence[float],
    denominators: Sequence[float],
    *,
    clusters: Sequence[str],
    level: float = 0.95,
    log_scale: bool = False,
    bounds: tuple[float, float] | None = None,
) -> Estimate:
    """r = Σ numerator / Σ denominator with its CR1 interval, t with G − 1 degrees of freedom.

    Method "cr1-t" is r ± t·SE. With `log_scale`, for means of nonnegative skewed values such as KL, method "cr1-log-t":
    exp(log r ± t·SE/r), widened above for the skewness seen (`intervals.log_t_bounds`); never below 0. r ≤ 0 falls back
    to "cr1-t". `bounds` is the range the ratio can have at all: intervals are clipped to it, and one cluster alone
    gives all of it ("one-cluster"). "no-variance": all clusters agree, the interval is the value.

    Raises: ValueError when nothing was measured, or for one cluster without `bounds`.
    """
    fit = fit_ratio(cluster_sums(numerators, denominators, clusters))
    if fit.clusters == 1:
        if bounds is None:
            raise ValueError("one cluster says nothing about the spread between clusters: no interval")
        return _estimate(fit, fit.value, *bounds, level, "one-cluster")
    t, _ = both_tails(level, fit.df)
    if fit.se == 0.0:
        return _estimate(fit, fit.value, fit.value, fit.value, level, "no-variance")
    logs = log_scale and fit.value > 0.0
    low, high = map(float, log_t_bounds(fit, t) if logs else t_bounds(fit, t))
    if bounds is not None:
        low, high = max(low, bounds[0]), min(high, bounds[1])
    return _estimate(fit, fit.value, low, high, level, "cr1-log-t" if logs else "cr1-t")


def score(
    link: Link,
    numerators: Sequence[float],
    denominators: Sequence[float],
    clusters: Sequence[str],
    *,
    level: float = 0.95,
    proportion: bool = False,
) -> Estimate:
    """The axis score, 0 to 100, higher is better: `link` of r = Σ numerator / Σ denominator, with its interval.

    Methods: "cr1-log-t" for "100*exp(-r)"; "cr1-t" for "100*exp(-5*|r|)", whose high end is 100 when the interval of r
    holds 0; "wilson-t" for "100*r", Wilson's interval at the effective sample size; "wilson" with `proportion`, for
    trials that hit or miss; "no-variance", width 0, when all clusters have one KL; "one-cluster", the whole [0, 100].
    Shares and excesses allow for what is rare and was perhaps not seen (`intervals.with_one_more`).
    The score is a plug-in: near r = 0 the absolute value makes "100*exp(-5*|r|)" lean low, its interval allows for it.

    Raises: ValueError when nothing was measured.
    """
    fit = fit_ratio(cluster_sums(numerators, denominators, clusters))
    value, method = link_score(link, fit.value), score_method(link, fit, proportion=proportion)
    if method == "one-cluster":
        return _estimate(fit, value, 0.0, 100.0, level, method)
    t, z = both_tails(level, fit.df)
    ends = [float(end) for end in score_bounds(link, fit, method, t, z)]
    return _estimate(fit, value, min(ends), max(ends), level, method)


def _estimate(fit: RatioFit, value: float, low: float, high: float, level: float, method: str) -> Estimate:
    low, high = min(low, value), max(high, value)
    return Estimate(value=value, low=low, high=high, level=level, n=fit.n, clusters=fit.clusters, method=method)
