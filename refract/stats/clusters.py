"""Sums by cluster, and the cluster-robust fit of a ratio that every interval of the package starts from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]

_ROUNDING = 1e-12  # relative standard errors below this are float noise of equal values, not variance


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClusterSums:
    """Numerators (G,) and denominators (G,) summed within each of G clusters, labels sorted, from n observations."""

    labels: tuple[str, ...]
    numerators: F64
    denominators: F64
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioFit:
    """r = Σ numerator / Σ denominator with its cluster-robust standard error.

    `skewness` is that of the cluster totals' residuals, corrected for small G (0 for G < 3 or no variance). `se` is
    exactly 0 when the residuals are rounding noise, and meaningless when `clusters` is 1.
    """

    value: float
    se: float
    skewness: float
    n: int
    clusters: int

    @property
    def df(self) -> int:
        """Degrees of freedom of the t law, G − 1."""
        return self.clusters - 1


def cluster_sums(numerators: Sequence[float], denominators: Sequence[float], clusters: Sequence[str]) -> ClusterSums:
    """The samples' sums by cluster; samples that are 0 / 0 carry no information and are left out.

    Raises: ValueError for lengths that differ, values that are not finite, negative denominators, a numerator over a
    denominator of 0, or no informative sample at all.
    """
    top, bottom = np.asarray(numerators, dtype=np.float64), np.asarray(denominators, dtype=np.float64)
    names = np.asarray(clusters, dtype=np.str_)
    if not (top.ndim == 1 and top.shape == bottom.shape == names.shape):
        raise ValueError(f"one cluster per sample expected, found {top.shape}, {bottom.shape}, {names.shape}")
    if not (np.all(np.isfinite(top)) and np.all(np.isfinite(bottom))):
        raise ValueError("samples must be finite: count non-finite values, do not average them")
    informative = bottom > 0.0
    if np.any(bottom < 0.0) or np.any(top[~informative] != 0.0):
        raise ValueError("denominators must be positive, or 0 together with their numerator")
    if not np.any(informative):
        raise ValueError("no measurement, no number: every sample is empty")
    labels, index = np.unique(names[informative], return_inverse=True)
    return ClusterSums(
        labels=tuple(map(str, labels)),
        numerators=_sums(index, top[informative], len(labels)),
        denominators=_sums(index, bottom[informative], len(labels)),
        n=int(informative.sum()),
    )


def _sums(index: npt.NDArray[np.intp], values: F64, groups: int) -> F64:
    return np.bincount(index, values, groups).astype(np.float64)


def fit_ratio(sums: ClusterSums) -> RatioFit:
    """r with the linearised CR1 standard error.

    Var r = G/(G−1) · Σ_g u_g² / (Σ denominator)² with u_g = Σ_{i∈g} (numerator_i − r · denominator_i); for
    denominators of 1 this is the clustered variance of a mean (Cameron & Miller 2015; Miller 2024,
    arXiv:2411.00640).
    """
    total = float(sums.denominators.sum())
    value = float(sums.numerators.sum()) / total
    scale = float(np.abs(sums.numerators).sum()) / total
    return fit_residuals(value, (sums.numerators - value * sums.denominators) / total, scale=scale, n=sums.n)


def fit_residuals(value: float, residuals: F64, *, scale: float, n: int) -> RatioFit:
    """The fit of an estimate whose linearised residuals (G,) per cluster sum to 0: SE² = G/(G−1) · Σ residual².

    `scale` is the size of the numbers the residuals are differences of, against which rounding noise is judged.
    """
    groups = len(residuals)
    se = math.sqrt(groups / (groups - 1) * float(residuals @ residuals)) if groups > 1 else 0.0
    se = 0.0 if se <= _ROUNDING * scale else se
    return RatioFit(value=value, se=se, skewness=_skewness(residuals) if se else 0.0, n=n, clusters=groups)


def _skewness(residuals: F64) -> float:
    """The adjusted Fisher–Pearson coefficient G₁ of residuals that sum to 0 (Joanes & Gill 1998)."""
    count = len(residuals)
    if count < 3:
        return 0.0
    scaled = residuals / np.max(np.abs(residuals))
    second, third = float(np.mean(scaled**2)), float(np.mean(scaled**3))
    return third / math.pow(second, 1.5) * math.sqrt(count * (count - 1)) / (count - 2)


def cluster_draws(rng: np.random.Generator, groups: int, replicates: int) -> npt.NDArray[np.int64]:
    """How often each cluster is drawn (replicates, groups), when `groups` of them are drawn with replacement."""
    drawn = rng.integers(groups, size=(replicates, groups)) + groups * np.arange(replicates)[:, None]
    return np.bincount(drawn.ravel(), minlength=replicates * groups).reshape(replicates, groups)
