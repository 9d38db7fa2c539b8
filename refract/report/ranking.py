"""Several candidates in order: shared ranks where the paired interval holds 0, and the Pareto front over size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from refract.report.words import bands
from refract.results import AxisResult, Band, CandidateResult, Composite, Estimate, within_noise
from refract.stats.composite import composite, composite_difference
from refract.stats.paired import paired_score_difference, tie_groups


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """A candidate's place; `rank` is None where an axis of the ranking was not measured, and within kernel noise.

    `score` and `bands` are over the axes of the ranking. `tied` says that the rank is shared; `pareto` that no other
    ranked candidate is as small and as close; `noise` that the candidate cannot be told from the control.
    """

    candidate: CandidateResult
    score: Estimate | None
    rank: int | None
    bands: tuple[Band, ...] = ()
    tied: bool = False
    pareto: bool = False
    noise: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """Candidates best first, then those without a rank in the order given; `basis` names the axes compared."""

    basis: tuple[str, ...]
    rows: tuple[Ranked, ...]

    @property
    def name(self) -> str:
        """What is ranked: a composite, one axis, or nothing."""
        return f"REFRACT[{'+'.join(self.basis)}]" if len(self.basis) > 1 else "".join(self.basis)


def axis_of(candidate: CandidateResult, name: str) -> AxisResult | None:
    """The candidate's result on an axis, if it has one."""
    return next((axis for axis in candidate.axes if axis.axis == name), None)


def rank(candidates: Sequence[CandidateResult], control: CandidateResult | None = None) -> Ranking:
    """The candidates ranked by their score on the axes they share; those within the control's noise get no rank."""
    basis = common_axes(candidates)
    scored = {i: score for i, c in enumerate(candidates) if (score := score_on(c, basis)) is not None}
    groups = tie_groups(
        [str(i) for i in scored],
        [score.value for score in scored.values()],
        lambda a, b: indistinguishable(candidates[int(a)], candidates[int(b)], basis),
    )
    front = pareto([(candidates[i].effective.bytes_per_token, score.value) for i, score in scored.items()])
    on_front = {i for i, marked in zip(scored, front, strict=True) if marked}
    rows: list[Ranked] = []
    for group in groups:
        place = len(rows) + 1
        for i in map(int, group):
            noise = within_noise(candidates[i], control)
            rows.append(
                Ranked(
                    candidate=candidates[i],
                    score=scored[i],
                    rank=None if noise else place,
                    bands=tuple(bands(composite_on(candidates[i], basis))),
                    tied=len(group) > 1 and not noise,
                    pareto=i in on_front,
                    noise=noise,
                )
            )
    rest = (Ranked(candidate=c, score=None, rank=None) for i, c in enumerate(candidates) if i not in scored)
    return Ranking(basis=basis, rows=(*rows, *rest))


def ranking_note(ranking: Ranking) -> str:
    """What the marks of a ranking mean, only those that occur."""
    notes = [f"Ranked by {ranking.name}, the axes they share."]
    if any(row.tied for row in ranking.rows):
        notes.append("= shares its rank: the paired interval of the difference holds 0.")
    if any(row.pareto for row in ranking.rows):
        notes.append("* on the Pareto front: no other is as small and as close.")
    if any(row.noise for row in ranking.rows):
        notes.append("– with a score: not distinguishable from kernel noise.")
    if any(row.rank is None and not row.noise for row in ranking.rows):
        notes.append("Without a rank: an axis of the ranking has no score.")
    return " ".join(notes)


def ok_axes(candidate: CandidateResult) -> tuple[str, ...]:
    """The names of the axes that are ok, in their order."""
    return tuple(axis.axis for axis in candidate.axes if axis.status == "ok")


def common_axes(candidates: Sequence[CandidateResult]) -> tuple[str, ...]:
    """The axes that are ok for every candidate with a composite; without composites, for every one with any axis.

    Where they share none, the set that most candidates have.
    """
    sets = [ok_axes(c) for c in candidates if c.composite.score is not None] or [
        axes for axes in map(ok_axes, candidates) if axes
    ]
    if not sets:
        return ()
    shared = tuple(axis for axis in sets[0] if all(axis in axes for axes in sets))
    return shared or max(sets, key=lambda axes: (sets.count(axes), len(axes)))


def composite_on(candidate: CandidateResult, basis: Sequence[str]) -> Composite:
    """The candidate's composite of these axes, its own one where it is made of just these."""
    own = candidate.composite
    if set(own.axes) == set(basis):
        return own
    try:
        with np.errstate(all="ignore"):
            return composite(_chosen(candidate, basis))
    except (ValueError, ArithmeticError) as error:
        return Composite(score=None, reason=f"the samples do not carry a composite: {error}")


def score_on(candidate: CandidateResult, basis: Sequence[str]) -> Estimate | None:
    """The candidate's score on these axes, None unless all of them are ok."""
    axes = _chosen(candidate, basis)
    if not axes or len(axes) < len(basis):
        return None
    return axes[0].score if len(axes) == 1 else composite_on(candidate, basis).score


def _chosen(candidate: CandidateResult, basis: Sequence[str]) -> list[AxisResult]:
    return [axis for axis in candidate.axes if axis.axis in basis and axis.status == "ok"]


def difference(a: CandidateResult, b: CandidateResult, basis: Sequence[str], *, level: float = 0.95) -> Estimate:
    """Score of `a` minus score of `b` on these axes, paired; positive means that `a` is closer to the reference.

    Raises: ValueError when they cannot be paired: an axis is missing, or no sample is shared.
    """
    ours, theirs = _chosen(a, basis), _chosen(b, basis)
    if not basis or len(ours) < len(basis) or len(theirs) < len(basis):
        raise ValueError(f"not every one of {', '.join(basis)} was measured on both sides")
    if len(basis) > 1:
        return composite_difference(ours, theirs, level=level)
    left, right = ours[0], theirs[0]
    return paired_score_difference(left.link, left.samples, right.samples, unit=left.unit, level=level)


def indistinguishable(a: CandidateResult, b: CandidateResult, basis: Sequence[str]) -> bool:
    """Whether the paired interval of the difference holds 0, or there is none to tell them apart."""
    try:
        with np.errstate(all="ignore"):
            found = difference(a, b, basis)
    except (ValueError, ArithmeticError):
        return True
    return found.low <= 0.0 <= found.high


def pareto(points: Sequence[tuple[float, float]]) -> list[bool]:
    """For (bytes, score) points, whether no other has at most the bytes and at least the score, and one of them better.

    Points of unknown size (0) are never marked.
    """
    return [
        size > 0.0 and not any(0.0 < s <= size and v >= value and (s, v) != (size, value) for s, v in points)
        for size, value in points
    ]
