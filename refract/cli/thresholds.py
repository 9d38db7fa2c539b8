"""The gates of `refract score`: whether every candidate meets --fail-under and --fail-over-kld."""

from __future__ import annotations

from collections.abc import Iterator

from refract.results import CandidateResult, Estimate, Report

MISSED = 10


def missed(report: Report, *, fail_under: float | None, fail_over_kld: float | None) -> list[str]:
    """One line for each threshold a candidate misses; what was not measured does not pass."""
    return [
        line
        for candidate in report.candidates
        for line in (*_under(candidate, fail_under), *_over(candidate, fail_over_kld))
    ]


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
    mean = mean_kl(candidate)
    if mean is None:
        yield f"{candidate.kv}: no mean KL divergence to compare with --fail-over-kld {limit:g}"
    elif mean > limit:
        yield f"{candidate.kv}: a mean KL divergence of {mean:.4g} nats is above --fail-over-kld {limit:g}"


def mean_kl(candidate: CandidateResult) -> float | None:
    """The candidate's mean KL divergence over the corpus in nats, where it was measured."""
    for axis in candidate.axes:
        if axis.axis == "kld" and axis.status == "ok":
            value = axis.statistics.get("mean_kl_nats")
            return value.value if isinstance(value, Estimate) else value
    return None
