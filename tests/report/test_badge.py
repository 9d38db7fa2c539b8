"""The badge: one candidate's verdict, readable, inert, and the same bytes for the same report."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from refract.report.badge import COLOURS, LABEL, UNCERTAIN, to_badge
from refract.report.ranking import rank
from refract.results import Report

from .builder import report
from .strategies import reports

LIGHT = settings(max_examples=25, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))


def words(svg: str) -> list[str]:
    return [text.text or "" for text in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def test_it_says_whose_score_it_is() -> None:
    whole = report()
    one = replace(whole, candidates=whole.candidates[:1])
    assert words(to_badge(one)) == ["REFRACT ctk=q8_0,ctv=turbo3", "91.1 EXCELLENT"]
    assert f'fill="{COLOURS["EXCELLENT"]}"' in to_badge(one)
    assert to_badge(one) == to_badge(one)


def test_of_several_it_shows_the_first_in_rank() -> None:
    whole = report()
    best = rank(whole.candidates, whole.control).rows[0].candidate
    assert words(to_badge(whole))[0] == f"REFRACT {best.kv}"


def test_what_is_not_certain_or_not_there_has_no_colour_of_a_band() -> None:
    whole = report()
    unsure, idle = (replace(whole, candidates=(whole.candidates[i],)) for i in (2, 4))
    assert words(to_badge(unsure))[1].endswith("DEGRADED/FAIL") or "/" in words(to_badge(unsure))[1]
    assert f'fill="{UNCERTAIN}"' in to_badge(unsure)
    assert words(to_badge(idle))[1] == "no score"
    assert words(to_badge(replace(whole, candidates=()))) == ["REFRACT", "not measured"]


def test_hostile_text_is_inert() -> None:
    whole = report()
    evil = '"><script>alert(1)</script>\x1b[31m'
    changed = replace(whole.candidates[0], kv=evil)
    svg = to_badge(replace(whole, candidates=(changed,), model=replace(whole.model, name=evil)))
    assert "<script" not in svg
    assert "\x1b" not in svg
    assert ElementTree.fromstring(svg).tag.endswith("svg")


@pytest.mark.parametrize("colour", [*COLOURS.values(), UNCERTAIN, LABEL])
def test_white_on_every_colour_is_readable(colour: str) -> None:
    """A contrast of 4.5 or more (WCAG 2.2, 1.4.3)."""
    channels = [int(part, 16) / 255.0 for part in re.findall("..", colour[1:])]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    luminance = sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    assert 1.05 / (luminance + 0.05) >= 4.5


@LIGHT
@given(reports)
def test_every_report_has_one(value: Report) -> None:
    assert ElementTree.fromstring(to_badge(value)).tag.endswith("svg")
