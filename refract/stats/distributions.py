"""Quantiles of Student's t, chi-square, beta and normal laws, from the incomplete beta and gamma functions.

scipy is not a runtime dependency; the tests compare every function here with it. Continued fractions are evaluated by
the modified Lentz method (Press et al., Numerical Recipes, 3rd ed., §5.2, §6.2, §6.4).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]

_TINY = 1e-300
_EPS = 2e-16
_MAX_TERMS = 100_000


def normal_quantile(p: float) -> float:
    """z with P(Z ≤ z) = p for a standard normal Z."""
    return NormalDist().inv_cdf(p)


def beta_cdf(x: npt.ArrayLike, a: float, b: float) -> F64:
    """Regularised incomplete beta function I_x(a, b), elementwise for x in [0, 1] (NR §6.4)."""
    xs = np.asarray(x, dtype=np.float64)
    return _beta_cdf(xs, 1.0 - xs, a, b)


def _beta_cdf(x: F64, complement: F64, a: float, b: float) -> F64:
    """I_x(a, b) with 1 − x given apart, so that neither tail loses digits."""
    x, complement = np.atleast_1d(x), np.atleast_1d(complement)
    with np.errstate(divide="ignore"):
        log_front = a * np.log(x) + b * np.log(complement) - _log_beta(a, b)
    front = np.exp(log_front)
    direct = x < (a + 1.0) / (a + b + 2.0)
    out = np.empty_like(x)
    out[direct] = front[direct] * _beta_fraction(x[direct], a, b) / a
    swapped = ~direct
    out[swapped] = 1.0 - front[swapped] * _beta_fraction(complement[swapped], b, a) / b
    return out


def _log_beta(a: float, b: float) -> float:
    """log B(a, b); for large arguments by Stirling's series, where three log-gammas would cancel."""
    if min(a, b) > 20.0:
        total = a + b
        body = -0.5 * math.log(b) + 0.5 * math.log(2.0 * math.pi)
        body += (a - 0.5) * math.log(a / total) + b * math.log(b / total)
        return body + _stirling(a) + _stirling(b) - _stirling(total)
    if max(a, b) > 20.0:
        small, large = min(a, b), max(a, b)
        shift = (large - 0.5) * math.log1p(small / large) + small * math.log(large + small) - small
        return math.lgamma(small) - shift + _stirling(large) - _stirling(large + small)
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def _stirling(x: float) -> float:
    """log Γ(x) − (x − ½) log x + x − ½ log 2π, for x > 20 (Abramowitz & Stegun 6.1.41)."""
    return 1 / (12 * x) - 1 / (360 * x**3) + 1 / (1260 * x**5) - 1 / (1680 * x**7)


def _beta_fraction(x: F64, a: float, b: float) -> F64:
    """The continued fraction of I_x(a, b), NR eq. 6.4.5."""
    c = np.ones_like(x)
    d = 1.0 / _nonzero(1.0 - (a + b) * x / (a + 1.0))
    h = d.copy()
    for m in range(1, _MAX_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d, c = 1.0 / _nonzero(1.0 + even * d), _nonzero(1.0 + even / c)
        h *= d * c
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        d, c = 1.0 / _nonzero(1.0 + odd * d), _nonzero(1.0 + odd / c)
        step = d * c
        h *= step
        if np.all(np.abs(step - 1.0) < 4 * _EPS):
            break
    return h


def _nonzero(values: F64) -> F64:
    return np.where(np.abs(values) < _TINY, _TINY, values)


def gamma_cdf(x: float, a: float) -> float:
    """Regularised lower incomplete gamma function P(a, x), by series or continued fraction (NR §6.2)."""
    if x <= 0.0:
        return 0.0
    front = math.exp(a * math.log(x) - x - math.lgamma(a))
    if x < a + 1.0:
        term = total = 1.0 / a
        for k in range(1, _MAX_TERMS):
            term *= x / (a + k)
            total += term
            if term < total * _EPS:
                break
        return front * total
    return 1.0 - front * _gamma_fraction(x, a)


def _gamma_fraction(x: float, a: float) -> float:
    """The continued fraction of Q(a, x), NR eq. 6.2.7."""
    b = x + 1.0 - a
    c = 1.0 / _TINY
    d = h = 1.0 / b
    for k in range(1, _MAX_TERMS):
        an = -k * (k - a)
        b += 2.0
        d = 1.0 / (an * d + b or _TINY)
        c = b + an / c or _TINY
        h *= d * c
        if abs(d * c - 1.0) < 4 * _EPS:
            break
    return h


def _bisect(function: Callable[[float], float], target: float, low: float, high: float) -> float:
    """The x in [low, high] at which the increasing `function` reaches `target`, to the last bits."""
    for _ in range(200):
        middle = 0.5 * (low + high)
        if middle in (low, high):
            break
        low, high = (middle, high) if function(middle) < target else (low, middle)
    return 0.5 * (low + high)


@lru_cache(maxsize=1024)
def chi2_quantile(p: float, df: float) -> float:
    """x with P(X ≤ x) = p for a chi-square X with `df` degrees of freedom; 0 at p = 0."""
    if not 0.0 <= p < 1.0 or df <= 0.0:
        raise ValueError(f"chi-square quantiles need 0 ≤ p < 1 and df > 0, found p={p}, df={df}")
    high = df + 10.0
    while gamma_cdf(high / 2.0, df / 2.0) < p:
        high *= 2.0
    return _bisect(lambda x: gamma_cdf(x / 2.0, df / 2.0), p, 0.0, high) if p else 0.0


@lru_cache(maxsize=1024)
def beta_quantile(p: float, a: float, b: float) -> float:
    """x with P(X ≤ x) = p for X ~ Beta(a, b); Clopper–Pearson limits are two of these."""
    if not 0.0 <= p <= 1.0 or a <= 0.0 or b <= 0.0:
        raise ValueError(f"beta quantiles need 0 ≤ p ≤ 1, a > 0, b > 0, found p={p}, a={a}, b={b}")
    return _bisect(lambda x: float(beta_cdf(x, a, b)[0]), p, 0.0, 1.0)


def binomial_cdf(k: int, n: int, p: float) -> float:
    """P(X ≤ k) for X ~ Binomial(n, p), through the incomplete beta function."""
    if k < 0:
        return 0.0
    return 1.0 if k >= n else float(beta_cdf(1.0 - p, n - k, k + 1.0)[0])


def student_t_tail(t: npt.ArrayLike, df: float) -> F64:
    """P(T > t) for t ≥ 0 with `df` degrees of freedom, elementwise (NR eq. 6.14.11)."""
    squared = np.square(np.atleast_1d(np.asarray(t, dtype=np.float64)))
    return 0.5 * _beta_cdf(df / (df + squared), squared / (df + squared), 0.5 * df, 0.5)


def student_t_quantiles(p: npt.ArrayLike, df: float) -> F64:
    """t with P(T ≤ t) = p, elementwise for p in (0, 1): Newton's method kept inside a bisection bracket."""
    ps = np.atleast_1d(np.asarray(p, dtype=np.float64))
    if not (np.all((ps > 0.0) & (ps < 1.0)) and df > 0.0):
        raise ValueError(f"Student quantiles need 0 < p < 1 and df > 0, found df={df}")
    tail = np.minimum(ps, 1.0 - ps)
    low, high = np.zeros_like(tail), np.full_like(tail, 2.0)
    while np.any(short := student_t_tail(high, df) > tail):
        high = np.where(short, 2.0 * high, high)
    log_density = -_log_beta(0.5 * df, 0.5) - 0.5 * math.log(df)
    t = 0.5 * (low + high)
    for _ in range(100):
        excess = student_t_tail(t, df) - tail
        low, high = np.where(excess > 0, t, low), np.where(excess > 0, high, t)
        step = t + excess / np.exp(log_density - 0.5 * (df + 1.0) * np.log1p(t * t / df))
        new = np.where((step >= low) & (step <= high), step, 0.5 * (low + high))
        done = np.all(np.abs(new - t) <= 4 * _EPS * new)
        t = new
        if done:
            break
    return np.where(ps < 0.5, -t, np.where(ps == 0.5, 0.0, t))


@lru_cache(maxsize=1024)
def student_t_quantile(p: float, df: float) -> float:
    """t with P(T ≤ t) = p for `df` degrees of freedom."""
    return float(student_t_quantiles(p, df)[0])


@lru_cache(maxsize=64)
def student_t_grid(size: int, df: float) -> F64:
    """The t quantiles (size,) at (j + ½) / size, read-only: a sample of Student's law without noise."""
    upper = student_t_quantiles((np.arange(size - size // 2, size) + 0.5) / size, df)
    grid = np.concatenate([-upper[::-1], np.zeros(size % 2), upper])  # symmetric: only half of it is computed
    grid.setflags(write=False)
    return grid


@lru_cache(maxsize=64)
def normal_grid(size: int) -> F64:
    """The standard normal quantiles (size,) at (j + ½) / size, read-only."""
    grid = np.array([normal_quantile((j + 0.5) / size) for j in range(size)])
    grid.setflags(write=False)
    return grid


def bootstrap_widening(groups: int, level: float) -> float:
    """√(G/(G−1)) · t/z: by how much a percentile bootstrap over G clusters is too narrow.

    Its spread is that of a variance with divisor G, read at normal quantiles (Hesterberg 2015, Am. Stat. 69:371).
    """
    upper = 0.5 * (1.0 + level)
    return math.sqrt(groups / (groups - 1)) * student_t_quantile(upper, groups - 1) / normal_quantile(upper)
