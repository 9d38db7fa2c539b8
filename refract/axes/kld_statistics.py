"""Figures and tables of the kld axis: pure functions of divergences that are finite throughout."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from refract.axes.answers import interval_json
from refract.axes.means import clustered_mean
from refract.axes.measured import F64, Measured, Stretch, join
from refract.axes.prefixes import NEAR_TIE
from refract.results import Estimate, Json, Sample, Statistic
from refract.stats import estimate
from refract.stats.quantiles import BEYOND

QUANTILES = {"median_kl_nats": 0.5, "p90_kl_nats": 0.9, "p99_kl_nats": 0.99, "p999_kl_nats": 0.999}
MARGIN_EDGES = (0.0, NEAR_TIE, 0.25, 0.5, 0.75, 0.9, 1.0)
CURVE_POINTS = 60
STEP_TOKENS = 16  # of a continuation, for one point of KL against position
_SMALLEST_KL = 1e-9  # below it float32 log-probabilities say nothing


def window_sample(stretch: Stretch) -> Sample:
    """Σ KL over the positions of one window."""
    kl = stretch.kl
    return Sample(
        id=stretch.place.id,
        cluster=stretch.place.id,
        category=stretch.place.category,
        numerator=float(kl.sum()),
        denominator=float(len(kl)),
        detail={
            "text": stretch.place.text,
            "positions": len(kl),
            "mean_kl_nats": float(kl.mean()),
            "max_kl_nats": float(kl.max()),
            "max_at": stretch.start + int(kl.argmax()),
            "top1_agreement": float(np.mean(stretch.divergence.same_top)),
        },
    )


def counts(windows: Measured, deep: Measured, trajectories: Measured) -> dict[str, Statistic]:
    """How much was measured, and how much of it is not finite."""
    every = (windows, deep, trajectories)
    return {
        "windows": len(windows.stretches),
        "windows_missing": len(windows.failures),
        "positions": windows.positions,
        "reference_not_finite": sum(m.reference_not_finite for m in every),
        "candidate_not_finite": sum(m.candidate_not_finite for m in every),
        "trajectory_positions": trajectories.positions,
    }


def statistics(windows: Measured, trajectories: Measured | None, *, seed: int) -> dict[str, Statistic]:
    """Means with intervals by window, quantiles, and the same of the continuations where there are any.

    KL in nats, lower is better; `mean_delta_nll_nats` is signed, candidate minus reference: below 0 the candidate
    predicts the text better, which is no merit. Perplexities are shown and never scored.
    """
    kl, agree = windows.column("kl"), windows.column("same_top")
    return {
        "mean_kl_nats": mean_kl(windows),
        **_quantiles(kl, windows.clusters, seed),
        "max_kl_nats": float(kl.max()),
        "top1_agreement": _mean(agree, windows, bounds=(0.0, 1.0)),
        "decisive_flip_share": _mean(
            (1.0 - agree) * (windows.column("reference_margin") >= NEAR_TIE), windows, bounds=(0.0, 1.0)
        ),
        "rms_delta_p": _root(_mean(windows.column("token_p_delta") ** 2, windows, log_scale=True)),
        "mean_delta_nll_nats": _mean(windows.column("token_nll_delta"), windows),
        "perplexity_reference": _perplexity(windows.column("reference_nll")),
        "perplexity_candidate": _perplexity(windows.column("reference_nll") + windows.column("token_nll_delta")),
        **(_along(trajectories) if trajectories else {}),
    }


def _along(trajectories: Measured) -> dict[str, Statistic]:
    kl, agree = trajectories.column("kl"), trajectories.column("same_top")
    return {
        "trajectory_mean_kl_nats": mean_kl(trajectories),
        "trajectory_max_kl_nats": float(kl.max()),
        "trajectory_top1_agreement": _mean(agree, trajectories, bounds=(0.0, 1.0)),
    }


def _mean(
    values: F64, measured: Measured, *, log_scale: bool = False, bounds: tuple[float, float] | None = None
) -> Estimate | float | None:
    return clustered_mean(values, measured.clusters, log_scale=log_scale, bounds=bounds)


def _root(found: Estimate | float | None) -> Statistic:
    if isinstance(found, Estimate):
        low, high = math.sqrt(max(0.0, found.low)), math.sqrt(found.high)
        return replace(found, value=math.sqrt(found.value), low=low, high=high)
    return None if found is None else math.sqrt(found)


def _quantiles(kl: F64, clusters: Sequence[str], seed: int) -> dict[str, Statistic]:
    """Each quantile, with an interval when there are several windows; None with fewer than 10 positions beyond it."""
    found = estimate.quantiles(kl, clusters, list(QUANTILES.values()), seed=seed)
    enough = {p: len(kl) * min(p, 1.0 - p) >= BEYOND - 1e-9 for p in QUANTILES.values()}
    return {name: found[p] or (float(np.quantile(kl, p)) if enough[p] else None) for name, p in QUANTILES.items()}


def _perplexity(nll: F64) -> float | None:
    """exp of the mean, None when it is too large to be a number."""
    mean = float(nll.mean())
    return math.exp(mean) if math.isfinite(mean) and mean < 700.0 else None


def series(windows: Measured, deep: Measured, trajectories: Measured | None) -> dict[str, Json]:
    """The tables and curves a report draws, named in docs/report-schema.md."""
    found: dict[str, Json] = {
        "categories": [{"category": name, **_group_row(group)} for name, group in by_category(windows).items()],
        "kl_tail": _tail(windows.column("kl")),
        "margins": _margins(windows),
    }
    if deep.stretches:
        found["depths"] = [{"depth": int(name), **_group_row(group)} for name, group in by_category(deep).items()]
    if trajectories:
        found["trajectories"] = [_trajectory_row(s) for s in trajectories.stretches]
        found["trajectory_kl"] = _by_position(trajectories)
    return found


def by_category(measured: Measured) -> dict[str, Measured]:
    """The stretches of each category, in the order in which categories first come."""
    groups: dict[str, list[Stretch]] = {}
    for stretch in measured.stretches:
        groups.setdefault(stretch.place.category, []).append(stretch)
    return {name: Measured(stretches=tuple(group), failures={}) for name, group in groups.items()}


def mean_kl(measured: Measured) -> Estimate | float | None:
    """Mean KL in nats over the positions, with its interval by window."""
    return _mean(measured.column("kl"), measured, log_scale=True)


def _group_row(group: Measured) -> dict[str, Json]:
    mean = mean_kl(group)
    bare: dict[str, Json] = {"value": mean if isinstance(mean, float) else None, "low": None, "high": None}
    return {
        "windows": len(group.stretches),
        "positions": group.positions,
        "mean_kl_nats": interval_json(mean) if isinstance(mean, Estimate) else bare,
        "top1_agreement": float(group.column("same_top").mean()),
    }


def _tail(kl: F64) -> dict[str, Json]:
    """Share of positions with a KL `above` each of at most 60 log-spaced values, from the smallest that counts."""
    low, high = max(_SMALLEST_KL, float(kl.min())), float(kl.max())
    points = np.geomspace(low, high, CURVE_POINTS) if high > low else np.array([low])
    above = [float(np.mean(kl > x)) for x in points]
    return {"kl": [float(x) for x in points], "above": list(above)}


def _margins(windows: Measured) -> list[Json]:
    """Positions, changes of the most probable token and mean KL, by how sure the reference was."""
    margin, agree, kl = (windows.column(name) for name in ("reference_margin", "same_top", "kl"))
    bins = np.clip(np.digitize(margin, MARGIN_EDGES) - 1, 0, len(MARGIN_EDGES) - 2)
    rows: list[Json] = []
    for index, (low, high) in enumerate(pairwise(MARGIN_EDGES)):
        inside = bins == index
        count = int(inside.sum())
        rows.append(
            {
                "low": low,
                "high": high,
                "positions": count,
                "flips": int(np.sum(agree[inside] == 0.0)),
                "mean_kl_nats": float(kl[inside].mean()) if count else None,
            }
        )
    return rows


def _trajectory_row(stretch: Stretch) -> dict[str, Json]:
    return {
        "prompt": stretch.place.id,
        "category": stretch.place.category,
        "positions": len(stretch.divergence),
        "mean_kl_nats": float(stretch.kl.mean()),
        "max_kl_nats": float(stretch.kl.max()),
        "top1_agreement": float(np.mean(stretch.divergence.same_top)),
    }


def _by_position(trajectories: Measured) -> dict[str, Json]:
    """Mean KL at `from` to `from` + 15 tokens into the continuations, and how many positions that is."""
    kl = trajectories.column("kl")
    index = join([np.arange(len(s.divergence)) for s in trajectories.stretches])
    step = (index // STEP_TOKENS).astype(np.intp)
    sizes, sums = np.bincount(step), np.bincount(step, kl)
    return {
        "from": [int(i) * STEP_TOKENS for i in np.flatnonzero(sizes)],
        "positions": [int(n) for n in sizes[sizes > 0]],
        "mean_kl_nats": [float(x) for x in sums[sizes > 0] / sizes[sizes > 0]],
    }
