from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from refract.errors import ReportError
from refract.report.compare import compare
from refract.report.compare_html import comparison_html
from refract.report.compare_text import comparison_text, some
from refract.report.legacy import LegacyReport
from refract.report.markdown import comparison_markdown
from refract.results import Report

from .builder import report
from .strategies import reports


def with_candidates(*numbers: int) -> Report:
    """The built report with only these candidates."""
    whole = report()
    return replace(whole, candidates=tuple(whole.candidates[i] for i in numbers))


def other_method() -> Report:
    longer = report(n_predict=32)
    return replace(longer, methodology=replace(longer.methodology, id="m2"))


def test_one_report_is_a_group_of_its_candidates() -> None:
    found = compare([("a", report())])
    assert [group.reports for group in found.groups] == [("a",)]
    assert found.differing == ()
    assert [row.candidate.kv for row in found.groups[0].ranking.rows][:2] == [
        "ctk=q8_0,ctv=turbo4",
        "ctk=q8_0,ctv=turbo3",
    ]


def test_reports_of_one_methodology_are_ranked_together_and_named() -> None:
    found = compare([("a", with_candidates(0)), ("b", with_candidates(2))])
    rows = found.groups[0].ranking.rows
    assert [row.candidate.kv for row in rows] == ["a: ctk=q8_0,ctv=turbo3", "b: ctk=q4_0,ctv=q4_0"]
    difference = found.groups[0].against[0].difference
    assert difference
    assert difference.low > 0.0


def test_equal_candidates_share_a_rank_with_difference_0() -> None:
    found = compare([("a", with_candidates(0)), ("b", with_candidates(0))]).groups[0]
    assert [(row.rank, row.tied) for row in found.ranking.rows] == [(1, True), (1, True)]
    difference = found.against[0].difference
    assert difference
    assert difference.value == 0.0
    assert -10.0 < difference.low == -difference.high <= 0.0  # an axis at 100 everywhere may have missed what is rare


@pytest.mark.parametrize("change", ["methodology", "model", "engine"])
def test_other_methodologies_models_and_engines_are_never_ranked_together(change: str) -> None:
    other = other_method() if change == "methodology" else report()
    if change == "model":
        other = replace(other, model=replace(other.model, fingerprint="sha256:other"))
    if change == "engine":
        other = replace(other, model=replace(other.model, engine="llamacpp 1"))
    found = compare([("a", report()), ("b", other)])
    assert len(found.groups) == 2
    for text in (comparison_text(found), comparison_markdown(found)):
        assert "must not be ranked against each other" in text


def test_what_differs_is_named_with_who_has_it() -> None:
    found = compare([("a", report()), ("b", other_method()), ("c", report())])
    named = {d.what: dict(d.values) for d in found.differing}
    assert named["n_predict"] == {"24": ("a", "c"), "32": ("b",)}
    assert "model" not in named


def test_parameters_are_compared_one_by_one() -> None:
    other = report()
    other = replace(other, methodology=replace(other.methodology, parameters={"kld": {"chunks": 9, "ctx": 512}}))
    named = {d.what: dict(d.values) for d in compare([("a", report()), ("b", other)]).differing}
    assert named["parameters.kld.chunks"] == {"8": ("a",), "9": ("b",)}
    assert named["parameters.plad.seed"] == {"0": ("a",), "not set": ("b",)}


def test_nothing_to_compare() -> None:
    with pytest.raises(ReportError, match="nothing to compare"):
        compare([])


def test_forty_reports_of_one_name() -> None:
    found = compare([("r", with_candidates(i % 3)) for i in range(40)])
    assert len(found.groups[0].ranking.rows) == 40
    assert len({row.candidate.kv for row in found.groups[0].ranking.rows}) == 40
    assert max(len(line) for line in comparison_text(found).splitlines()) <= 80


def test_needles_are_compared_by_mcnemar() -> None:
    found = compare([("a", with_candidates(0)), ("b", with_candidates(1))]).groups[0]
    assert found.against[0].mcnemar_p == 1.0


def test_a_report_of_another_program_is_listed_in_no_group() -> None:
    old = LegacyReport(
        name="old.json",
        version="v0.3.1",
        model="m.gguf",
        engine="llamacpp",
        reference="ctk=f16,ctv=f16",
        candidate="ctk=q8_0,ctv=turbo4",
        composite=99.9,
        band="EXCELLENT",
    )
    found = compare([("a", report())], [old])
    assert [group.reports for group in found.groups] == [("a",)]
    for text in (comparison_text(found), comparison_markdown(found), comparison_html(found)):
        assert "listed and never" in text
        assert "(99.9 EXCELLENT)" in text.replace("\n", " ")
    alone = compare([], [old])
    assert alone.groups == ()
    assert "old.json" in comparison_text(alone)


def test_the_page_holds_hostile_names_inert_and_asks_for_nothing() -> None:
    evil = "</script><img src=x onerror=alert(1)>"
    one = report()
    found = compare([(evil, replace(one, model=replace(one.model, name=evil))), ("b", other_method())])
    page = comparison_html(found)
    assert "<img" not in page
    assert "&lt;img" in page
    assert "default-src &#39;none&#39;" in page
    assert "://" not in page
    assert set(re.findall(r'<[^>]*\s(?:src|href)="([^"]*)"', page)) == {"#main", "#group-1", "#group-2", "#differing"}
    assert comparison_html(found) == page


def test_many_names_are_counted_rather_than_listed() -> None:
    assert some(["a", "b"]) == "a, b"
    assert some([f"r{i}" for i in range(40)]) == "r0, r1, r2 and 37 more"


@settings(max_examples=12, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(reports, reports)
def test_whatever_two_reports_hold_they_are_compared(one: Report, other: Report) -> None:
    found = compare([("a", one), ("b", other), ("a", one)])
    assert sum(len(group.reports) for group in found.groups) == 3
    assert len({name for group in found.groups for name in group.reports}) == 3
    assert all(form(found) for form in (comparison_text, comparison_markdown, comparison_html))
