"""The leaderboard: only comparable rows in one table, the newest of each candidate, uncertainty flagged."""

from __future__ import annotations

from dataclasses import replace

import pytest

from refract.errors import ReportError
from refract.report.leaderboard import leaderboard
from refract.results import Report

from .builder import report
from .test_compare import other_method, with_candidates


def tables(text: str) -> list[list[list[str]]]:
    """The rows of each table, without its headers."""
    found: list[list[list[str]]] = []
    for block in text.split("\n\n"):
        lines = block.splitlines()
        if lines and lines[0].startswith("| "):
            found.append([[cell.strip() for cell in row.strip("| ").split(" | ")] for row in lines[2:]])
    return found


def test_each_methodology_and_model_has_a_table_of_its_own() -> None:
    other = report()
    other = replace(other, model=replace(other.model, name="Another", fingerprint="sha256:other"))
    text = leaderboard([("a", report()), ("b", other_method()), ("c", other)])
    assert text.count("\n## ") == 3
    assert [len(rows) for rows in tables(text)] == [5, 5, 5]
    assert text.index("## Another") < text.index("## SmolLM2")
    assert "no statement about the quality of a model" in text


def test_the_newest_of_several_runs_is_shown() -> None:
    old, new = with_candidates(0, 1), replace(with_candidates(0), created="2027-01-01T00:00:00Z")
    rows = tables(leaderboard([("old.json", old), ("new.json", new)]))[0]
    assert sorted((row[1], row[-1]) for row in rows) == [
        ("ctk=q8\\_0,ctv=turbo3", "new.json"),
        ("ctk=q8\\_0,ctv=turbo4", "old.json"),
    ]
    assert leaderboard([("new.json", new), ("old.json", old)]) == leaderboard([("old.json", old), ("new.json", new)])


def test_what_is_uncertain_is_flagged() -> None:
    rows = {row[1]: row[7] for row in tables(leaderboard([("a", report())]))[0]}
    assert "rniah: low confidence" in rows["ctk=q4\\_0,ctv=q4\\_0"]
    assert "kld: failed" in rows["ctk=turbo2,ctv=turbo2"]
    assert "kld: not exercised" in rows["ctk=fp8,ctv=fp8"]


def test_a_wide_interval_is_flagged() -> None:
    whole = with_candidates(0)
    first = whole.candidates[0]
    score = first.composite.score
    assert score is not None
    wide = replace(first, composite=replace(first.composite, score=replace(score, low=score.value - 30.0)))
    row = tables(leaderboard([("a", replace(whole, candidates=(wide,)))]))[0][0]
    assert "low confidence: ±" in row[7]


def test_nothing_is_refused() -> None:
    empty: list[tuple[str, Report]] = []
    with pytest.raises(ReportError, match="nothing to show"):
        leaderboard(empty)


def test_reports_without_a_candidate_and_reports_of_one_name() -> None:
    floor = replace(report(), candidates=())
    assert "No report has a candidate." in leaderboard([("a", floor)])
    old, new = with_candidates(0), replace(with_candidates(1), created="2027-01-01T00:00:00Z")
    rows = tables(leaderboard([("r", old), ("r", new)]))[0]
    assert sorted(row[-1] for row in rows) == ["r \\#1", "r \\#2"]
