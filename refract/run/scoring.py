"""Answers to scores: pure, so that stored answers can be scored again by a corrected formula."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from refract.axes.base import Answers, AxisPlan
from refract.errors import FloorError
from refract.results import AxisResult, CandidateResult, Composite
from refract.run.guards import (
    Measured,
    as_not_exercised,
    duplicates,
    must_differ,
    never_acted,
    never_read,
    same_numbers,
)
from refract.run.prepare import Prepared
from refract.run.spec import RunSpec
from refract.stats.composite import composite
from refract.work import Failure, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """What the answers of a run amount to."""

    candidates: tuple[CandidateResult, ...]
    floor: CandidateResult | None


def score_run(
    spec: RunSpec, prepared: Prepared, reference: Measured, candidates: Sequence[Measured], floor: Measured | None
) -> Scores:
    """The result of every candidate, guards applied, and of the reference as its own candidate. Runs no engine."""
    twins = duplicates(candidates)
    results = []
    for number, candidate in enumerate(candidates):
        result = score_candidate(spec, prepared, reference, candidate)
        twin = (twins[number],) if number in twins else ()
        results.append(replace(result, findings=(*twin, *result.findings)))
    own = None if floor is None else score_candidate(spec, prepared, reference, floor)
    return Scores(candidates=tuple(results), floor=own)


def score_candidate(spec: RunSpec, prepared: Prepared, reference: Measured, candidate: Measured) -> CandidateResult:
    """One candidate's axes in the order they were asked for, their composite, and all findings."""
    idle = _idle(prepared, reference, candidate)
    axes = []
    for axis in spec.axes:
        if axis.name in prepared.not_run:
            axes.append(_not_run(axis.name, prepared.not_run[axis.name]))
            continue
        result = _score_axis(prepared.plans[axis.name], reference.answers, candidate.answers)
        axes.append(as_not_exercised(result, idle[axis.name]) if axis.name in idle else result)
    found = [f"{_subject(idle, prepared, reason)}not exercised: {reason}" for reason in dict.fromkeys(idle.values())]
    found += [f"{result.axis} failed: {result.reason}" for result in axes if result.status == "failed"]
    found += [finding for result in axes for finding in result.findings]
    return CandidateResult(
        kv=str(candidate.kv),
        effective=candidate.effective,
        composite=composite(axes, seed=spec.seed),
        axes=tuple(axes),
        findings=tuple(dict.fromkeys(found)),
    )


def _idle(prepared: Prepared, reference: Measured, candidate: Measured) -> dict[str, str]:
    """Why an axis did not measure the candidate's compressed cache, for each axis that did not."""
    if not must_differ(reference, candidate):
        return {}
    if reason := never_acted(reference, candidate):
        return dict.fromkeys(prepared.plans, reason)
    found = {}
    for name, plan in prepared.plans.items():
        requests = plan.candidate(reference.answers)
        found[name] = never_read(requests, candidate.answers) or same_numbers(
            requests, reference.answers, candidate.answers
        )
    return {name: reason for name, reason in found.items() if reason}


def _subject(idle: Mapping[str, str], prepared: Prepared, reason: str) -> str:
    names = [name for name, own in idle.items() if own == reason]
    return "" if len(names) == len(prepared.plans) else f"{' and '.join(names)} "


def check_floor(floor: CandidateResult, minimum: float) -> None:
    """Returns when the reference agrees with itself. Raises: FloorError: its composite, or without one its lowest axis
    score, is below `minimum`."""
    value = _floor_value(floor.composite, floor.axes)
    if value is not None and value < minimum:
        raise FloorError(
            f"the reference scores {value:.2f} against itself, below {minimum:g}: no score would mean anything",
            hint="look for what makes the engine vary between runs: batching, prefix caching, another kernel or device",
        )


def _floor_value(whole: Composite, axes: Sequence[AxisResult]) -> float | None:
    if whole.score is not None:
        return whole.score.value
    return min((axis.score.value for axis in axes if axis.score is not None), default=None)


def _score_axis(plan: AxisPlan, reference: Answers, candidate: Answers) -> AxisResult:
    result = plan.score(reference, candidate)
    warnings = list(result.warnings)
    for side, requests, answers in (
        ("reference", plan.reference(), reference),
        ("candidate", plan.candidate(reference), candidate),
    ):
        warnings += [warning for warning in _failures(side, requests, answers) if warning not in warnings]
    return replace(result, warnings=tuple(warnings))


def _failures(side: str, requests: Sequence[Request], answers: Answers) -> list[str]:
    unique = list(dict.fromkeys(requests))
    failed = [answer for request in unique if isinstance(answer := answers[request], Failure)]
    kinds = Counter(failure.kind for failure in failed)
    first = {failure.kind: failure.message for failure in reversed(failed)}
    return [
        f"{count} of {len(unique)} {side} requests failed: {kind}: {first[kind]}"
        for kind, count in sorted(kinds.items())
    ]


def _not_run(name: str, reason: str) -> AxisResult:
    """An axis without a plan; its link and unit say nothing, for it has neither samples nor a score."""
    return AxisResult(axis=name, status="not-run", score=None, reason=reason, link="100*r", unit="prompt")
