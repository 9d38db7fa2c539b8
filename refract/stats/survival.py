"""Survival of the reference's trajectory: Kaplan–Meier curves of the first divergence and their restricted means."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from refract.stats.distributions import normal_quantile


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """S(t) = P(T > t) at the distinct `time`s (M,), constant between them and 1 before the first.

    T is the 0-based index of the first divergence. `low` and `high` are pointwise bounds, `at_risk` counts the prompts
    still together just before `time`, `events` the divergences at it.
    """

    time: tuple[int, ...]
    survival: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    at_risk: tuple[int, ...]
    events: tuple[int, ...]
    level: float = 0.95


def kaplan_meier(times: Sequence[int], events: Sequence[bool], *, level: float = 0.95) -> Curve:
    """The Kaplan–Meier curve with log-log Greenwood bounds.

    `times` are 0-based indices of the first divergence where `events` is true, and of censoring where not. A prompt on
    which both sides ended alike has survived: give it the end of the budget. S(t) = Π (1 − d_j / n_j)
    over t_j ≤ t (Kaplan & Meier 1958); bounds exp(−exp(log(−log S) ∓ z·√V / log S)) with V = Σ d_j / (n_j (n_j − d_j))
    (Kalbfleisch & Prentice 2002, §1.4). Where S reaches 0 the variance has no estimate: `low` is 0 and `high` is
    carried forward.

    Raises: ValueError for no times, a negative time, or lengths that differ.
    """
    at, diverged = np.asarray(times, dtype=np.int64), np.asarray(events, dtype=np.bool_)
    if at.ndim != 1 or not at.size or at.shape != diverged.shape or np.any(at < 0):
        raise ValueError(f"one time ≥ 0 and one event flag per prompt expected, found {at.shape}, {diverged.shape}")
    z = normal_quantile(0.5 * (1.0 + level))
    survival, greenwood = 1.0, 0.0
    rows: list[tuple[int, float, float, float, int, int]] = []
    low, high = 1.0, 1.0
    for time in np.unique(at):
        exposed, deaths = int(np.sum(at >= time)), int(np.sum(diverged & (at == time)))
        survival *= 1.0 - deaths / exposed
        if survival > 0.0:
            greenwood += deaths / (exposed * (exposed - deaths))
            low, high = _log_log_bounds(survival, greenwood, z)
        else:
            low = 0.0
        rows.append((int(time), survival, low, high, exposed, deaths))
    columns = list(zip(*rows, strict=True))
    return Curve(
        time=columns[0],
        survival=columns[1],
        low=columns[2],
        high=columns[3],
        at_risk=columns[4],
        events=columns[5],
        level=level,
    )


def _log_log_bounds(survival: float, greenwood: float, z: float) -> tuple[float, float]:
    if survival == 1.0:
        return 1.0, 1.0
    spread = z * math.sqrt(greenwood) / math.log(survival)  # negative
    return survival ** math.exp(-spread), survival ** math.exp(spread)


def survival_at(curve: Curve, t: float) -> float:
    """S(t), the probability that the first divergence comes after index t."""
    passed = int(np.searchsorted(curve.time, t, side="right"))
    return curve.survival[passed - 1] if passed else 1.0


def rmst(curve: Curve, tau: int) -> tuple[float, float]:
    """(restricted mean, variance): matched tokens expected within a budget of `tau`, Σ_{t<τ} S(t), and its variance.

    Var = Σ_j [Σ_{t_j ≤ t < τ} S(t)]² · d_j / (n_j (n_j − d_j)) (Royston & Parmar 2013). Without censoring
    before τ, rmst / τ is the mean share of the budget that matched.
    """
    if tau < 1:
        raise ValueError(f"a budget has at least one token, found {tau}")
    known = [i for i, time in enumerate(curve.time) if time < tau]
    edges = [curve.time[i] for i in known] + [tau]
    areas = [curve.survival[i] * (edges[j + 1] - edges[j]) for j, i in enumerate(known)]
    value = edges[0] + sum(areas)
    variance, after = 0.0, 0.0
    for j in reversed(range(len(known))):
        after += areas[j]
        exposed, deaths = curve.at_risk[known[j]], curve.events[known[j]]
        if exposed > deaths:  # otherwise S is 0 from here on and adds nothing
            variance += after**2 * deaths / (exposed * (exposed - deaths))
    return float(value), variance
