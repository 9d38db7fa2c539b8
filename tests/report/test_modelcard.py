"""The model card's block: between its comments, honest about what is missing, inert."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, Phase, given, settings

from refract.report.modelcard import BEGIN, END, to_model_card
from refract.results import Report

from .builder import report
from .goldens import check
from .strategies import reports

LIGHT = settings(max_examples=25, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))


def test_golden_file() -> None:
    check("report.card.md", to_model_card(report()))


def test_it_lies_between_two_comments_so_that_a_script_can_replace_it() -> None:
    text = to_model_card(report())
    assert text.startswith(BEGIN)
    assert text.rstrip().endswith(END)
    assert to_model_card(report()) == text


def test_missing_scores_are_said_and_never_shown_as_numbers() -> None:
    whole = report()
    text = to_model_card(replace(whole, candidates=whole.candidates[4:]))
    assert "| no score |" in text
    assert "none is" in text
    assert "No candidate was measured." in to_model_card(replace(whole, candidates=()))


def test_low_confidence_is_said() -> None:
    assert "rniah is of low confidence, " in to_model_card(report())


def test_hostile_text_is_inert() -> None:
    whole = report()
    evil = "<!-- refract:end --> <script> | @everyone"
    text = to_model_card(replace(whole, model=replace(whole.model, name=evil)))
    assert text.count(END) == 1
    assert "\\<script\\>" in text


@LIGHT
@given(reports)
def test_every_report_has_one(value: Report) -> None:
    assert to_model_card(value).count(END) == 1
