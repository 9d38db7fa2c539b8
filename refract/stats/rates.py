"""Proportions and rates of events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from refract.results import Estimate
from refract.stats.clusters import cluster_sums, fit_ratio
from refract.stats.distributions import chi2_quantile, normal_quantile
from refract.stats.intervals import both_tails, log_t_bounds, wilson_bounds


def wilson(successes: int, n: int, *, level: float = 0.95) -> Estimate:
    """The proportion successes / n of independent trials with Wilson's score interval (Wilson 1927, JASA 22:209)."""
    if not 0 <= successes <= n or n < 1:
        raise ValueError(f"a proportion needs 0 ≤ successes ≤ n and n ≥ 1, found {successes} of {n}")
    z, value = normal_quantile(0.5 * (1.0 + level)), successes / n
    low, high = map(float, wilson_bounds(value, n, np.array([-z, z])))
    low, high = max(0.0, min(low, value)), min(1.0, max(high, value))
    return Estimate(value=value, low=low, high=high, level=level, n=n, clusters=n, method="wilson")


def poisson_rate(events: int, exposure: float, *, per: float = 1000.0, level: float = 0.95) -> Estimate:
    """Events per `per` units of exposure with the exact chi-square interval (Garwood 1936, Biometrika 28:437).

    Holds for events that come independently at one rate; `clustered_rate` makes no such assumption. n is the exposure.
    """
    if events < 0 or not exposure > 0.0:
        raise ValueError(f"a rate needs events ≥ 0 and exposure > 0, found {events} in {exposure}")
    alpha, scale = 1.0 - level, per / exposure
    low = 0.5 * chi2_quantile(alpha / 2.0, 2.0 * events) * scale if events else 0.0
    high = 0.5 * chi2_quantile(1.0 - alpha / 2.0, 2.0 * events + 2.0) * scale
    n = max(1, round(exposure))
    value = events * scale
    return Estimate(value=value, low=low, high=high, level=level, n=n, clusters=n, method="poisson-exact")


def clustered_rate(
    events: Sequence[float],
    exposures: Sequence[float],
    clusters: Sequence[str],
    *,
    per: float = 1000.0,
    level: float = 0.95,
) -> Estimate:
    """Events per `per` units of exposure, with an interval that allows the clusters to have rates of their own.

    Method "cr1-log-t": Σ events / Σ exposure with its cluster-robust interval on the log scale. Without events, with
    one cluster, or where all clusters agree there is no spread to go by: the exact Poisson interval stands in
    ("poisson-exact"). The step at which an event happens counts as exposure, so no event has an exposure of 0.
    """
    sums = cluster_sums(events, exposures, clusters)
    fit = fit_ratio(sums)
    if fit.clusters == 1 or fit.se == 0.0:
        total = poisson_rate(round(sums.numerators.sum()), float(sums.denominators.sum()), per=per, level=level)
        return replace(total, n=fit.n, clusters=fit.clusters)
    low, high = map(float, log_t_bounds(fit, both_tails(level, fit.df)[0]) * per)
    value = fit.value * per
    return Estimate(value=value, low=low, high=high, level=level, n=fit.n, clusters=fit.clusters, method="cr1-log-t")
