"""The kld axis' verdict: what rules a score out, and the score with everything beside it."""

from __future__ import annotations

from refract.axes import kld_statistics as figures
from refract.axes.answers import names, reasons, too_many_missing
from refract.axes.measured import Measured
from refract.results import AxisResult, Link, Unit
from refract.stats import estimate

LINK: Link = "100*exp(-r)"
UNIT: Unit = "window"


def kld_result(
    windows: Measured, trajectories: Measured, *, protocol: str, notes: tuple[str, ...], seed: int
) -> AxisResult:
    """100 · exp(−Σ KL / positions) over the windows, or the reason why there is no score."""
    problem = _problem(windows, trajectories)
    samples = () if problem else tuple(map(figures.window_sample, windows.stretches))
    shown = trajectories if trajectories.stretches else None
    return AxisResult(
        axis="kld",
        status="failed" if problem else "ok",
        score=None
        if problem
        else estimate.score(
            LINK,
            [s.numerator for s in samples],
            [s.denominator for s in samples],
            [s.cluster for s in samples],
        ),
        reason=problem,
        link=LINK,
        unit=UNIT,
        protocol=protocol,
        estimator=", ".join(windows.estimators) or None,
        statistics=figures.counts(windows, trajectories)
        if problem
        else figures.statistics(windows, shown, seed=seed) | figures.counts(windows, trajectories),
        series={} if problem else figures.series(windows, shown),
        samples=samples,
        warnings=(*notes, *_missing(windows, "windows"), *_missing(trajectories, "continuations")),
    )


def _problem(windows: Measured, trajectories: Measured) -> str | None:
    """What rules a score out, the reference's faults before the candidate's."""
    if too_many_missing(len(windows.failures), windows.total):
        return f"{len(windows.failures)} of {windows.total} windows are missing: {reasons(windows.failures.values())}"
    estimators = sorted({*windows.estimators, *trajectories.estimators})
    if len(estimators) > 1:
        return f"positions were measured with different estimators: {', '.join(estimators)}"
    for measured, where in ((windows, "positions"), (trajectories, "positions along the reference's continuations")):
        if measured.reference_not_finite:
            return f"the reference is not finite at {measured.reference_not_finite} of {measured.positions} {where}"
    for measured, where in ((windows, "positions"), (trajectories, "positions along the reference's continuations")):
        if measured.candidate_not_finite:
            return (
                f"the candidate's divergence is not finite at {measured.candidate_not_finite} of {measured.positions} "
                f"{where} where the reference is finite"
            )
    return None


def _missing(measured: Measured, noun: str) -> tuple[str, ...]:
    if not measured.failures:
        return ()
    return (
        f"{len(measured.failures)} of {measured.total} {noun} are missing ({names(measured.failures)}): "
        f"{reasons(measured.failures.values())}",
    )
