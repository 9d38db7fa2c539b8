"""One report against an earlier one: what is worse is proven, what is gone is said, what moved by chance is neither."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from refract.errors import ReportError
from refract.report import changes as module
from refract.report.changes import Changes, changes
from refract.report.compare_html import changes_html
from refract.report.compare_text import changes_text, regression_line
from refract.report.markdown import changes_markdown
from refract.results import AxisResult, CandidateResult, Report, Sample

from .builder import report
from .test_compare import other_method, with_candidates


def regressed() -> tuple[Report, Report]:
    """The same candidate, first good and then bad."""
    old = with_candidates(0)
    return old, replace(old, candidates=(replace(report().candidates[2], kv=old.candidates[0].kv),))


def test_no_change_against_itself() -> None:
    found = changes(report(), report())
    assert found.rows
    assert found.regressions == ()
    assert {change.verdict for change in found.rows} == {"no difference shown"}
    assert "none of" in changes_text(found).splitlines()[0]


def test_a_worse_candidate_is_a_regression() -> None:
    old, new = regressed()
    found = changes(old, new)
    verdicts = {change.what: change for change in found.rows}
    assert verdicts["REFRACT[trajectory+kld+plad]"].verdict == "worse"
    assert verdicts["kld"].verdict == "worse"
    assert verdicts["rniah"].verdict == "lost"
    assert "2 of 18 needles" in verdicts["rniah"].note
    assert {change.what for change in found.regressions} >= {"trajectory", "kld", "rniah"}
    back = {change.what: change.verdict for change in changes(new, old).rows}
    assert back["kld"] == "better"
    assert back["rniah"] == "gained"
    for text in (changes_text(found), changes_markdown(found), changes_html(found)):
        assert "scores are worse" in text


def test_what_got_worse_is_said_in_a_line() -> None:
    lines = {change.what: regression_line(change) for change in changes(*regressed()).regressions}
    assert lines["kld"].startswith("ctk=q8_0,ctv=turbo3: kld fell from ")
    assert " points, [" in lines["kld"]
    assert lines["rniah"].startswith("ctk=q8_0,ctv=turbo3: the score of rniah is gone: ")


def _axis(name: str, values: list[float]) -> AxisResult:
    old = report().candidates[0]
    first = next(axis for axis in old.axes if axis.axis == "trajectory")
    samples = tuple(
        Sample(id=f"p{i}", cluster=f"p{i}", numerator=value, denominator=1.0) for i, value in enumerate(values)
    )
    assert first.score is not None
    mean = 100.0 * sum(values) / len(values)
    score = replace(first.score, value=mean, low=mean - 1.0, high=mean + 1.0, n=len(values), clusters=len(values))
    return replace(first, axis=name, samples=samples, score=score, findings=(), series={})


def _report(axes: dict[str, list[float]]) -> Report:
    whole = report()
    first: CandidateResult = whole.candidates[0]
    own = tuple(_axis(name, values) for name, values in axes.items())
    lacking = replace(first.composite, score=None, band=None, reason="none", band_probability={}, axes=())
    return replace(whole, candidates=(replace(first, axes=own, composite=lacking),))


def _moves(axes: int, *, everywhere: bool = False) -> Changes:
    """`axes` axes of which the first falls, on a few prompts or on all, and the others not at all."""
    before = [0.9 - 0.01 * (i % 7) for i in range(40)]
    falls = [0.1 + 0.01 * (i % 3) if everywhere else 0.012 if i % 5 == 0 else -0.001 * (i % 2) for i in range(40)]
    fallen = [value - fall for value, fall in zip(before, falls, strict=True)]
    names = [f"axis{i}" for i in range(axes)]
    old = dict.fromkeys(names, before)
    return changes(_report(old), _report({name: fallen if name == "axis0" else before for name in names}))


def test_holm_asks_more_of_each_score_the_more_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fall that is significant alone and not among many: the interval is the same, the verdict is not."""
    asked: list[float] = []
    real = module.paired

    def spy(*args: object, level: float) -> object:
        asked.append(round(1.0 - level, 6))
        return real(*args, level=level)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "paired", spy)
    alone = next(change for change in _moves(1).rows if change.what == "axis0")
    assert alone.difference is not None
    assert alone.difference.high < 0.0
    assert alone.verdict == "worse"
    many = _moves(12)
    among = next(change for change in many.rows if change.what == "axis0")
    assert many.tested == 13
    assert among.difference == alone.difference
    assert among.verdict == "no difference shown"
    assert min(asked) < 0.05 / 6
    strong = next(change for change in _moves(12, everywhere=True).rows if change.what == "axis0")
    assert strong.verdict == "worse"


def test_a_move_that_holm_does_not_prove_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module._Pair, "differs", lambda self, alpha: alpha > 0.01 and self.basis == ("axis0",))
    found = next(change for change in _moves(12).rows if change.what == "axis0")
    assert (found.verdict, found.is_regression) == ("no difference shown", False)
    assert "13 scores" in found.note


def test_equal_candidates_seldom_regress() -> None:
    """24 pairs that differ by noise alone, on three axes and their composite: 2.5 % may regress, a few at most do."""
    found = 0
    for seed in range(24):
        rng = random.Random(seed)
        hard = {f"axis{i}": [rng.gauss(0.7, 0.15) for _ in range(40)] for i in range(3)}
        old, new = (
            {
                name: [min(1.0, max(0.0, value + rng.gauss(0.0, 0.08))) for value in values]
                for name, values in hard.items()
            }
            for _ in range(2)
        )
        found += bool(changes(_report(old), _report(new)).regressions)
    assert found <= 3


@pytest.mark.parametrize(
    ("limits", "proven"),
    [
        ([0.02], {0}),
        ([0.001, 0.02, 0.03], {0, 1, 2}),
        ([0.001, 0.03, 0.04], {0}),
        ([0.02, 0.02, 0.02], set()),
        ([0.04, 0.001], {0, 1}),
        ([0.001, 0.2], {0}),
        ([], set()),
    ],
)
def test_holm_by_nested_intervals_is_holm_by_p_values(limits: list[float], proven: set[int]) -> None:
    """Each fake test differs at exactly the levels above its p-value; expectations are Holm's by hand at 0.05."""

    class Fake:
        def __init__(self, p: float) -> None:
            self.p = p

        def differs(self, alpha: float) -> bool:
            return self.p <= alpha

    assert module._holm({i: Fake(p) for i, p in enumerate(limits)}) == proven  # type: ignore[misc]


def test_needles_are_judged_by_mcnemar() -> None:
    """Six needles lost of six decide at .05; five do not, whatever an interval says."""
    whole = with_candidates(0)
    good = whole.candidates[0]
    rniah = next(axis for axis in good.axes if axis.axis == "rniah")
    verdicts = {}
    for lost in (5, 6):
        samples = tuple(replace(s, numerator=0.0 if i < lost else s.numerator) for i, s in enumerate(rniah.samples))
        assert all(s.numerator == 1.0 for s in rniah.samples[:lost])
        worse = replace(rniah, samples=samples)
        pair = module._Pair(
            old=replace(good, axes=(rniah,)), new=replace(good, axes=(worse,)), basis=("rniah",), what="rniah"
        )
        verdicts[lost] = pair.differs(0.05)
    assert verdicts == {5: False, 6: True}


def test_another_engine_is_named_and_a_missing_candidate_too() -> None:
    old = with_candidates(0, 1)
    new = replace(with_candidates(0), model=replace(old.model, engine="mlx 9.9"))
    found = changes(old, new)
    assert [d.what for d in found.differing] == ["engine"]
    assert found.missing == ("ctk=q8_0,ctv=turbo4",)
    assert "Not in the new report: ctk=q8_0,ctv=turbo4" in " ".join(changes_text(found).split())


def test_another_version_of_an_engine_compares_and_another_engine_does_not() -> None:
    old = with_candidates(0)
    new = replace(old, model=replace(old.model, engine="llamacpp 1"))
    with pytest.raises(ReportError, match="not comparable, they differ in: engine"):
        changes(old, new)


def test_reports_that_measured_something_else_are_refused() -> None:
    with pytest.raises(ReportError, match=r"not comparable, they differ in: n_predict, methodology"):
        changes(report(), other_method())


def test_reports_without_a_common_candidate_are_refused() -> None:
    with pytest.raises(ReportError, match="no candidate in common"):
        changes(with_candidates(0), with_candidates(1))
