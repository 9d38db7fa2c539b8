"""Quantiles with cluster-bootstrap intervals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from refract.results import Estimate
from refract.stats.clusters import F64
from refract.stats.distributions import bootstrap_widening

BEYOND = 10  # a quantile with fewer values beyond it is an accident of the sample (SCIENCE §5.1)
_CHUNK_CELLS = 2_000_000


def quantiles(
    values: Sequence[float] | F64,
    clusters: Sequence[str],
    probs: Sequence[float],
    *,
    level: float = 0.95,
    replicates: int = 2000,
    seed: int = 0,
) -> dict[float, Estimate | None]:
    """Each quantile of the pooled values (linear interpolation, as numpy), or None where fewer than 10 lie beyond it.

    Interval: percentile bootstrap of whole clusters (Davison & Hinkley 1997, §3.8), widened for few of them
    (`distributions.bootstrap_widening`) within the range of the values, method "cluster-bootstrap"; None for one
    cluster, whose spread is unknown. Deterministic for a seed.

    Raises: ValueError for no values, values that are not finite, or lengths that differ.
    """
    data, names = np.asarray(values, dtype=np.float64), np.asarray(clusters, dtype=np.str_)
    if data.ndim != 1 or data.shape != names.shape or not data.size:
        raise ValueError(f"one cluster per value expected, found {data.shape} and {names.shape}")
    if not np.all(np.isfinite(data)):
        raise ValueError("quantiles of values that are not finite mean nothing: count those apart")
    labels, index = np.unique(names, return_inverse=True)
    known = [p for p in probs if len(labels) > 1 and data.size * min(p, 1.0 - p) >= BEYOND - 1e-9]
    found: dict[float, Estimate | None] = dict.fromkeys(probs)
    if not known:
        return found
    order = np.argsort(data, kind="stable")
    draws = _bootstrap(data[order], index[order], len(labels), np.array(known), replicates, seed)
    widening = bootstrap_widening(len(labels), level)
    tails = [(1.0 - level) / 2.0, (1.0 + level) / 2.0]
    for p, column in zip(known, draws.T, strict=True):
        value = float(np.quantile(data, p))
        low, high = np.clip(value + widening * (np.quantile(column, tails) - value), data.min(), data.max())
        found[p] = Estimate(
            value=value,
            low=min(float(low), value),
            high=max(float(high), value),
            level=level,
            n=data.size,
            clusters=len(labels),
            method="cluster-bootstrap",
        )
    return found


def _bootstrap(ascending: F64, index: npt.NDArray[np.intp], groups: int, probs: F64, replicates: int, seed: int) -> F64:
    """Quantiles (replicates, P) of the pooled values when whole clusters are drawn with replacement.

    A cluster drawn k times gives each of its sorted values multiplicity k, so that nothing is concatenated or sorted.
    """
    rng = np.random.default_rng(seed)
    counts = rng.multinomial(groups, np.full(groups, 1.0 / groups), size=replicates).astype(np.int32)
    chunk = max(1, _CHUNK_CELLS // len(ascending))
    out = np.empty((replicates, len(probs)))
    for start in range(0, replicates, chunk):
        ranks = np.cumsum(counts[start : start + chunk, index], axis=1, dtype=np.int32)
        for row, cumulative in enumerate(ranks, start):
            out[row] = _weighted_quantiles(ascending, cumulative, probs)
    return out


def _weighted_quantiles(ascending: F64, cumulative: npt.NDArray[np.int32], probs: F64) -> F64:
    """Quantiles (P,) of sorted values repeated so that `cumulative` counts them, interpolated as numpy does."""
    position = probs * (int(cumulative[-1]) - 1)
    below = np.floor(position)
    wanted = np.concatenate([below, np.ceil(position)]).astype(np.int32)
    found = ascending[np.searchsorted(cumulative, wanted, side="right")]
    lower, upper = found[: len(probs)], found[len(probs) :]
    return lower + (position - below) * (upper - lower)
