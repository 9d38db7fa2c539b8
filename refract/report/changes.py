"""One report against an earlier one of the same methodology and model: which scores are worse, and which only moved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from refract.errors import ReportError
from refract.report.compare import Differing, comparable, differing, needles_p, paired
from refract.report.ranking import axis_of, ok_axes, score_on
from refract.results import CandidateResult, Estimate, Report

Verdict = Literal["worse", "better", "no difference shown", "lost", "gained"]
ALPHA = 0.05  # family-wise


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One score of one candidate before and after; `difference` is new minus old, so below 0 is worse.

    "worse" and "better" hold after Holm's correction over all scores compared; "lost" is a score that is gone.
    """

    kv: str
    what: str
    old: Estimate | None
    new: Estimate | None
    difference: Estimate | None
    verdict: Verdict
    note: str = ""

    @property
    def is_regression(self) -> bool:
        """Whether the new report is worse here, or has lost the score."""
        return self.verdict in ("worse", "lost")


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """All scores that both reports could have, composites first.

    `tested` is how many of them were compared; `differing` is what the reports disagree on without being incomparable;
    `missing` are candidates of the old report that the new one lacks.
    """

    rows: tuple[Change, ...]
    tested: int
    differing: tuple[Differing, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def regressions(self) -> tuple[Change, ...]:
        """The changes for the worse: paired intervals of new minus old below 0, and scores that are gone."""
        return tuple(change for change in self.rows if change.is_regression)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """A score of a candidate before and after."""

    old: CandidateResult
    new: CandidateResult
    basis: tuple[str, ...]
    what: str

    @property
    def scores(self) -> tuple[Estimate | None, Estimate | None]:
        """The score before, and after."""
        return score_on(self.old, self.basis), score_on(self.new, self.basis)

    def moved(self, level: float) -> tuple[Estimate | None, str]:
        """New minus old, paired, or why there is none."""
        return paired(self.new, self.old, self.basis, level=level)

    def differs(self, alpha: float) -> bool:
        """Whether no difference is ruled out at this level: by McNemar's test for needles, else by the interval."""
        if self.basis == ("rniah",):
            p = needles_p(self.new, self.old)
            return p is not None and p <= alpha
        found = self.moved(1.0 - alpha)[0]
        return found is not None and not found.low <= 0.0 <= found.high


def changes(old: Report, new: Report) -> Changes:
    """Every score of every candidate that both reports have, composites first.

    Raises: ReportError when the reports differ in methodology, model or engine, or share no candidate.
    """
    differ = differing([("old", old), ("new", new)])
    if comparable(old) != comparable(new):
        names = ", ".join(d.what for d in differ)
        raise ReportError(
            f"the reports are not comparable, they differ in: {names}",
            hint="score both with the same model, prompts, corpus and parameters",
        )
    before = {candidate.kv: candidate for candidate in old.candidates}
    both = [(before[candidate.kv], candidate) for candidate in new.candidates if candidate.kv in before]
    if not both:
        raise ReportError("the reports have no candidate in common", hint="score the same --candidate in both")
    pairs = [pair for a, b in both for pair in _pairs(a, b)]
    tested = {i: pair for i, pair in enumerate(pairs) if None not in pair.scores and pair.moved(1.0 - ALPHA)[0]}
    proven = _holm(tested)
    shared = {candidate.kv for candidate in new.candidates}
    return Changes(
        rows=tuple(_change(pair, proven=i in proven, tested=len(tested)) for i, pair in enumerate(pairs)),
        tested=len(tested),
        differing=differ,
        missing=tuple(kv for kv in before if kv not in shared),
    )


def _pairs(old: CandidateResult, new: CandidateResult) -> Iterator[_Pair]:
    shared = tuple(axis for axis in ok_axes(old) if axis in ok_axes(new))
    if len(shared) > 1:
        yield _Pair(old=old, new=new, basis=shared, what=f"REFRACT[{'+'.join(shared)}]")
    for name in dict.fromkeys(axis.axis for axis in (*old.axes, *new.axes)):
        yield _Pair(old=old, new=new, basis=(name,), what=name)


def _holm(tested: Mapping[int, _Pair]) -> frozenset[int]:
    """The pairs that differ with a family-wise error of at most ALPHA (Holm 1979).

    Step-down over m tests asks of the i-th strongest whether it holds at α/(m − i). A test that is an interval has no
    p-value, but intervals of falling α are nested: the largest k at which one still excludes 0 at α/k orders the tests
    as their p-values would, and tells which steps each would pass.
    """
    strengths = sorted(((_strength(pair, len(tested)), i) for i, pair in tested.items()), key=lambda s: (-s[0], s[1]))
    proven: set[int] = set()
    for passed, (strength, i) in enumerate(strengths):
        if strength < len(tested) - passed:
            break
        proven.add(i)
    return frozenset(proven)


def _strength(pair: _Pair, most: int) -> int:
    """The largest k up to `most` with a difference at α/k, 0 for none."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if pair.differs(ALPHA / middle) else (low, middle - 1)
    return low


def _change(pair: _Pair, *, proven: bool, tested: int) -> Change:
    before, after = pair.scores
    found, note = (None, "") if before is None or after is None else pair.moved(1.0 - ALPHA)
    verdict: Verdict = "no difference shown"
    if after is None:
        axis = axis_of(pair.new, pair.basis[0])
        note = (axis.reason or "") if axis is not None else "not measured"
        verdict = verdict if before is None else "lost"
    elif before is None:
        verdict = "gained"
    elif proven and found is not None:
        verdict = "worse" if found.value < 0.0 else "better"
    elif found is not None and not found.low <= 0.0 <= found.high:
        note = f"one of {tested} scores may move so far by chance"
    return Change(kv=pair.new.kv, what=pair.what, old=before, new=after, difference=found, verdict=verdict, note=note)
