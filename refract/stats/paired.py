"""Two candidates on the same samples, and many candidates at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from refract.results import Estimate, Link, Sample, Unit
from refract.stats.clusters import F64, ClusterSums, cluster_draws, cluster_sums, fit_ratio, fit_residuals
from refract.stats.distributions import binomial_cdf, bootstrap_widening
from refract.stats.intervals import both_tails, link_score, skew_t_bounds, unseen_points
from refract.stats.resample import Resampled, difference_interval, paired_scores


def paired_ratio_difference(
    numerators_a: Sequence[float],
    denominators_a: Sequence[float],
    numerators_b: Sequence[float],
    denominators_b: Sequence[float],
    *,
    clusters: Sequence[str],
    level: float = 0.95,
) -> Estimate:
    """r_A − r_B on the same samples, with its CR1 interval: what both candidates share within a cluster cancels.

    Var = G/(G−1) · Σ_g (u_A,g / D_A − u_B,g / D_B)², u the linearised residuals and D the summed denominators, t with
    G − 1 degrees of freedom, widened on the side to which the differences are skewed
    (`intervals.skew_t_bounds`). Methods "paired-cr1-t", and "no-variance" when all clusters agree.

    Raises: ValueError for one cluster, or where `ratio` would.
    """
    a, b = _aligned(numerators_a, denominators_a, numerators_b, denominators_b, clusters)
    groups = len(a.labels)
    if groups == 1:
        raise ValueError("one cluster says nothing about the spread between clusters: no interval")
    r_a, r_b = fit_ratio(a).value, fit_ratio(b).value
    residuals = (a.numerators - r_a * a.denominators) / a.denominators.sum()
    residuals = residuals - (b.numerators - r_b * b.denominators) / b.denominators.sum()
    fit = fit_residuals(r_a - r_b, residuals, scale=abs(r_a) + abs(r_b), n=min(a.n, b.n))
    low, high = map(float, skew_t_bounds(fit, both_tails(level, fit.df)[0]))
    return Estimate(
        value=fit.value,
        low=low,
        high=high,
        level=level,
        n=fit.n,
        clusters=groups,
        method="paired-cr1-t" if fit.se else "no-variance",
    )


def paired_log_ratio(
    numerators_a: Sequence[float],
    denominators_a: Sequence[float],
    numerators_b: Sequence[float],
    denominators_b: Sequence[float],
    *,
    clusters: Sequence[str],
    level: float = 0.95,
    replicates: int = 2000,
    seed: int = 0,
) -> Estimate:
    """log(r_A / r_B) on the same samples with a paired cluster bootstrap; exp of it says how many times B's KL A has.

    Percentile interval, widened for few clusters (`distributions.bootstrap_widening`). Method
    "paired-cluster-bootstrap".

    Raises: ValueError for one cluster, or where either ratio is not positive.
    """
    a, b = _aligned(numerators_a, denominators_a, numerators_b, denominators_b, clusters)
    groups = len(a.labels)
    totals = np.array([s.sum() for s in (a.numerators, a.denominators, b.numerators, b.denominators)])
    if groups == 1 or min(totals) <= 0.0:
        raise ValueError("a log ratio needs two positive ratios over two or more clusters")
    rng = np.random.default_rng(seed)
    weights = cluster_draws(rng, groups, replicates).astype(np.float64)
    sums = [weights @ s for s in (a.numerators, a.denominators, b.numerators, b.denominators)]
    defined = np.all([s > 0.0 for s in sums], axis=0)
    value = _log_ratio(*totals)
    deviations = np.array([_log_ratio(*row) for row in np.column_stack(sums)[defined]]) - value
    tails = [(1.0 - level) / 2.0, (1.0 + level) / 2.0]
    low, high = value + bootstrap_widening(groups, level) * np.quantile(deviations, tails)
    return Estimate(
        value=value,
        low=min(float(low), value),
        high=max(float(high), value),
        level=level,
        n=min(a.n, b.n),
        clusters=groups,
        method="paired-cluster-bootstrap",
    )


def _log_ratio(top_a: float, bottom_a: float, top_b: float, bottom_b: float) -> float:
    return math.log(top_a / bottom_a) - math.log(top_b / bottom_b)


def _aligned(
    numerators_a: Sequence[float],
    denominators_a: Sequence[float],
    numerators_b: Sequence[float],
    denominators_b: Sequence[float],
    clusters: Sequence[str],
) -> tuple[ClusterSums, ClusterSums]:
    """Both sides' sums over one list of clusters, 0 where a side has no information there."""
    a, b = cluster_sums(numerators_a, denominators_a, clusters), cluster_sums(numerators_b, denominators_b, clusters)
    labels = tuple(sorted(set(a.labels) | set(b.labels)))
    return _spread(a, labels), _spread(b, labels)


def _spread(sums: ClusterSums, labels: tuple[str, ...]) -> ClusterSums:
    places = np.searchsorted(labels, sums.labels)
    columns: list[F64] = []
    for values in (sums.numerators, sums.denominators):
        column = np.zeros(len(labels))
        column[places] = values
        columns.append(column)
    return ClusterSums(labels=labels, numerators=columns[0], denominators=columns[1], n=sums.n)


def paired_score_difference(
    link: Link,
    a: Sequence[Sample],
    b: Sequence[Sample],
    *,
    unit: Unit = "prompt",
    level: float = 0.95,
    replicates: int = 2000,
    seed: int = 0,
) -> Estimate:
    """Score of A minus score of B over the samples both have (by id), in points, with a paired interval.

    Positive means that A is closer to the reference. Method "paired-bootstrap" (`resample.difference_interval`);
    "one-cluster" spans all of [−100, 100]; "no-variance", width 0, when no replicate changes the difference and
    neither side may have missed what is rare (`intervals.unseen_points`). For hits and misses ask `mcnemar_exact` as
    well: with few discordant trials no interval of a difference is reliable.

    Raises: ValueError when no sample is shared.
    """
    shared = {s.id for s in a} & {s.id for s in b}
    if not shared:
        raise ValueError("the candidates share no samples: nothing to pair")
    sides = [Resampled.of(link, unit, [s for s in side if s.id in shared], proportion=False) for side in (a, b)]
    scores = paired_scores(sides, level=level, seed=seed, replicates=replicates)
    value = link_score(link, sides[0].fit.value) - link_score(link, sides[1].fit.value)
    unseen = max(unseen_points(link, side.fit, level) for side in sides)
    return difference_interval(sides, value, scores[0] - scores[1], level, unseen=unseen)


def mcnemar_exact(b: int, c: int) -> float:
    """Two-sided p-value of the exact McNemar test on discordant pairs: 2 · P(Bin(b+c, ½) ≤ min(b, c)), at most 1.

    `b` counts samples that only A hit, `c` those that only B hit (McNemar 1947). Significance at .05
    needs six or more, all on one side.
    """
    if b < 0 or c < 0:
        raise ValueError(f"counts are 0 or more, found {b} and {c}")
    return min(1.0, 2.0 * binomial_cdf(min(b, c), b + c, 0.5))


def holm(pvalues: Sequence[float]) -> list[float]:
    """Adjusted p-values in the order given: each below α rejects with family-wise error ≤ α (Holm 1979)."""
    order = sorted(range(len(pvalues)), key=lambda i: pvalues[i])
    adjusted, running = [0.0] * len(pvalues), 0.0
    for rank, i in enumerate(order):
        running = max(running, min(1.0, (len(pvalues) - rank) * pvalues[i]))
        adjusted[i] = running
    return adjusted


def tie_groups(
    names: Sequence[str], scores: Sequence[float], pair_includes_zero: Callable[[str, str], bool]
) -> list[list[str]]:
    """Groups of candidates that share a rank, best first: neighbours in score order whose paired interval holds 0.

    `pair_includes_zero(better, worse)` is asked of neighbours only, so a long group may have ends that do differ.
    """
    ranked = [name for _, name in sorted(zip(scores, names, strict=True), key=lambda pair: -pair[0])]
    groups: list[list[str]] = []
    for name in ranked:
        if groups and pair_includes_zero(groups[-1][-1], name):
            groups[-1].append(name)
        else:
            groups.append([name])
    return groups


def non_inferior(difference: Estimate, margin: float) -> bool:
    """Whether a loss as large as `margin` is ruled out; `difference` is candidate minus comparator, higher is better.

    The claim rests on the whole interval lying above −margin (Schuirmann 1987), never on a difference that fails to be
    significant; the margin is chosen beforehand.
    """
    if not margin > 0.0:
        raise ValueError(f"a margin is positive, found {margin}")
    return difference.low > -margin
