"""The kld axis' verdict: what rules a score out, and the score with everything beside it."""

from __future__ import annotations

import math
from collections.abc import Iterator

from refract.axes import kld_statistics as figures
from refract.axes.answers import names, reasons, too_many_missing
from refract.axes.measured import F64, Measured
from refract.results import AxisResult, Estimate, Link, Statistic, Unit
from refract.stats import estimate

LINK: Link = "100*exp(-r)"
UNIT: Unit = "window"
LOWEST_KL = -0.01  # nats; rounding of 16-bit log-probabilities stays far above it
LOWEST_MEAN_KL = -1e-4
APART = 0.1054  # mean nats of a score of 90
DEEPER = 2.0  # times the KL of the windows, from which on a deep cache's KL is a finding


def kld_result(
    windows: Measured, *, deep: Measured, trajectories: Measured, protocol: str, notes: tuple[str, ...], seed: int
) -> AxisResult:
    """100 · exp(−Σ KL / positions) over the windows, or the reason why there is no score."""
    counts = figures.counts(windows, deep, trajectories)
    lost = (*_missing(windows, "windows"), *_missing(deep, "deep windows"), *_missing(trajectories, "continuations"))
    problem = _problem(windows, deep, trajectories)
    if problem:
        return AxisResult(
            axis="kld",
            status="failed",
            score=None,
            reason=problem,
            link=LINK,
            unit=UNIT,
            protocol=protocol,
            estimator=", ".join(windows.estimators) or None,
            statistics=counts,
            warnings=(*notes, *lost),
        )
    samples = tuple(map(figures.window_sample, windows.stretches))
    columns = [s.numerator for s in samples], [s.denominator for s in samples], [s.cluster for s in samples]
    along = trajectories if trajectories.stretches else None
    statistics = figures.statistics(windows, along, seed=seed)
    alone = "one window says nothing about the spread between windows" if len(samples) == 1 else None
    return AxisResult(
        axis="kld",
        status="low-confidence" if alone else "ok",
        score=estimate.score(LINK, *columns),
        reason=alone,
        link=LINK,
        unit=UNIT,
        protocol=protocol,
        estimator=windows.estimators[0],
        statistics={**statistics, **counts},
        series=figures.series(windows, deep, along),
        samples=samples,
        warnings=(*notes, *lost, *_bounds(windows, deep, trajectories)),
        findings=(*_distance(windows), *_growth(statistics["mean_kl_nats"], deep)),
    )


def _problem(windows: Measured, deep: Measured, trajectories: Measured) -> str | None:
    """What rules a score out, the reference's faults before the candidate's."""
    if too_many_missing(len(windows.failures), windows.total):
        return f"{len(windows.failures)} of {windows.total} windows are missing: {reasons(windows.failures.values())}"
    for measured in (windows, deep, trajectories):
        if len(measured.estimators) > 1:
            return f"positions were measured with different estimators: {', '.join(measured.estimators)}"
    kinds = {
        "positions": windows,
        "positions in deep windows": deep,
        "positions along the reference's continuations": trajectories,
    }
    for where, measured in kinds.items():
        if measured.reference_not_finite:
            return f"the reference is not finite at {measured.reference_not_finite} of {measured.positions} {where}"
    for where, measured in kinds.items():
        if measured.candidate_not_finite:
            return (
                f"the candidate's divergence is not finite at {measured.candidate_not_finite} of {measured.positions} "
                f"{where} where the reference is finite"
            )
        if negative := _negative(measured.column("kl"), where):
            return negative
    return None


def _negative(kl: F64, where: str) -> str | None:
    """What cannot be a divergence: below 0 by more than rounding."""
    if not len(kl) or (kl.min() >= LOWEST_KL and kl.mean() >= LOWEST_MEAN_KL):
        return None
    count = int((kl < 0.0).sum())
    return f"KL is below 0 at {count} of {len(kl)} {where}, down to {kl.min():.3g} nats, which no divergence can be"


def _distance(windows: Measured) -> Iterator[str]:
    """Sentences on a KL too large to be EXCELLENT, and on a perplexity that hides it."""
    mean, delta = windows.column("kl").mean(), windows.column("token_nll_delta").mean()
    if mean < APART:
        return
    flips = 1.0 - windows.column("same_top").mean()
    yield f"next-token distributions are {mean:.3g} nats apart; the most probable token is another at {flips:.0%}"
    if delta < 0.0:
        change = -math.expm1(delta)
        yield f"the candidate's perplexity is {change:.0%} lower than the reference's, which is no merit: see the KL"


def _bounds(windows: Measured, deep: Measured, trajectories: Measured) -> Iterator[str]:
    """What stands beside the score and was measured by another estimator than it."""
    for noun, measured in (("deep windows", deep), ("continuations", trajectories)):
        if measured.estimators and measured.estimators != windows.estimators:
            yield f"{noun} were measured with {measured.estimators[0]}, the score with {windows.estimators[0]}"


def _missing(measured: Measured, noun: str) -> tuple[str, ...]:
    if not measured.failures:
        return ()
    return (
        f"{len(measured.failures)} of {measured.total} {noun} are missing ({names(measured.failures)}): "
        f"{reasons(measured.failures.values())}",
    )


def _growth(shallow: Statistic, deep: Measured) -> Iterator[str]:
    """A sentence on the deepest windows, if their KL lies clearly above that of the windows that make the score."""
    at_depth = list(figures.by_category(deep).items())
    if not at_depth or not isinstance(shallow, Estimate):
        return
    depth, kl = at_depth[-1][0], figures.mean_kl(at_depth[-1][1])
    if isinstance(kl, Estimate) and kl.value >= DEEPER * shallow.value and kl.low > shallow.high:
        yield (
            f"KL grows with the depth of the cache: {shallow.value:.3g} nats in the scored windows, "
            f"{kl.value:.3g} nats at {int(depth):,} tokens"
        )
