"""The gates of `refract score`: whether every candidate meets the thresholds it was asked to meet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from refract.report.ranking import difference, ok_axes
from refract.report.words import interval
from refract.results import CandidateResult, Report
from refract.stats.paired import non_inferior

MISSED = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """What candidates must meet; None asks for nothing. `comparator` is a candidate's canonical KV text."""

    fail_under: float | None = None  # composite, points
    fail_over_kld: float | None = None  # mean KL divergence, nats
    comparator: str | None = None
    margin: float = 0.0  # the loss against the comparator that is to be ruled out, points


def missed(report: Report, thresholds: Thresholds) -> dict[str, list[str]]:
    """By candidate, a line for each threshold it misses; what was not measured does not pass."""
    rival = next((c for c in report.candidates if c.kv == thresholds.comparator), None)
    found: dict[str, list[str]] = {}
    for candidate in report.candidates:
        lines = [
            *_under(candidate, thresholds.fail_under),
            *_over(candidate, thresholds.fail_over_kld),
            *_inferior(candidate, rival, thresholds.margin),
        ]
        if lines:
            found.setdefault(candidate.kv, []).extend(lines)
    return found


def _under(candidate: CandidateResult, limit: float | None) -> Iterator[str]:
    if limit is None:
        return
    composite = candidate.composite
    if composite.score is None:
        yield f"{candidate.kv}: no composite to compare with --fail-under {limit:g}: {composite.reason}"
    elif composite.score.value < limit:
        yield f"{candidate.kv}: {composite.score.value:.1f} is below --fail-under {limit:g}"


def _over(candidate: CandidateResult, limit: float | None) -> Iterator[str]:
    if limit is None:
        return
    mean = candidate.mean_kl_nats
    if mean is None:
        yield f"{candidate.kv}: no mean KL divergence to compare with --fail-over-kld {limit:g}"
    elif mean > limit:
        yield f"{candidate.kv}: a mean KL divergence of {mean:.4g} nats is above --fail-over-kld {limit:g}"


def _inferior(candidate: CandidateResult, rival: CandidateResult | None, margin: float) -> Iterator[str]:
    """Why the candidate is not shown to lose less than `margin` points against the rival, if it is not."""
    if rival is None or candidate is rival:
        return
    axes = ok_axes(rival)
    if set(ok_axes(candidate)) != set(axes) or not axes:
        mine, theirs = (", ".join(ok_axes(side)) or "none" for side in (candidate, rival))
        yield f"{candidate.kv}: cannot be compared with {rival.kv}: axes that are ok: {mine}; of the other: {theirs}"
        return
    try:
        found = difference(candidate, rival, axes)
    except ValueError as error:
        yield f"{candidate.kv}: cannot be compared with {rival.kv}: {error}"
        return
    if not non_inferior(found, margin):
        yield (
            f"{candidate.kv}: not shown non-inferior to {rival.kv}: {found.value:+.1f} {interval(found)} points"
            f" do not rule out a loss of the margin, {margin:g}"
        )
