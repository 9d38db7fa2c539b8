"""Damaged reports are refused in one line, or shown in every form; nothing else ever comes out."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from refract.errors import RefractError
from refract.report import from_json, to_html, to_json, to_markdown, to_text
from refract.report.badge import to_badge
from refract.report.junit import to_junit
from refract.report.legacy import read_legacy
from refract.report.modelcard import to_model_card
from tests.report.builder import report

from .mutations import FEW, SOME, damaged, damaged_json, json_values

_SMALL = report(prompts=2, n_predict=4, windows=2)
WHOLE = to_json(replace(_SMALL, candidates=_SMALL.candidates[:2]))
PARSED = json.loads(WHOLE)
LEGACY: dict[str, Any] = {
    "schema": "refract.report.v0.3.2",
    "model": "/models/small.gguf",
    "candidate": "ctk=q8_0,ctv=turbo3",
    "reference": "ctk=f16,ctv=f16",
    "composite": 91.5,
    "band": "EXCELLENT",
    "environment": {"backend": "mlx"},
    "axes": {"gtm": {"score": 90.1}, "kld": {"score": 95.0}},
}


def refused_in_one_line(error: RefractError) -> None:
    assert "\n" not in error.message
    assert error.hint


def read_and_shown(text: str) -> None:
    """Reads the text as a report; what is accepted has to survive every form, and itself."""
    try:
        found = from_json(text, source="r.json")
    except RefractError as error:
        refused_in_one_line(error)
        return
    assert from_json(to_json(found)) == found
    for form in (to_text, to_markdown, to_html, to_badge, to_model_card):
        assert form(found)
    assert to_junit(found, {})


@FEW
@given(damaged(WHOLE, ("null", "1e999", "{}", "[]", '"', "NaN", "\\ud800")))
def test_damaged_text(text: str) -> None:
    read_and_shown(text)


@FEW
@given(damaged_json(PARSED))
def test_damaged_values(value: Any) -> None:
    read_and_shown(json.dumps(value))


@FEW
@given(damaged_json([sample["detail"] for sample in PARSED["candidates"][0]["axes"][0]["samples"]]))
def test_damaged_details_of_prompts(details: Any) -> None:
    """The part of a report that is open: whatever stands in it, the report can be shown."""
    value = json.loads(WHOLE)
    samples = value["candidates"][0]["axes"][0]["samples"]
    for sample, detail in zip(samples, details if isinstance(details, list) else [], strict=False):
        sample["detail"] = detail
    read_and_shown(json.dumps(value))


@FEW
@given(damaged_json([axis["series"] for axis in PARSED["candidates"][0]["axes"]]))
def test_damaged_series(series: Any) -> None:
    value = json.loads(WHOLE)
    for axis, each in zip(value["candidates"][0]["axes"], series if isinstance(series, list) else [], strict=False):
        axis["series"] = each
    read_and_shown(json.dumps(value))


@SOME
@given(json_values | damaged_json(LEGACY), st.booleans())
def test_reports_of_refract_llm(value: Any, cut: bool) -> None:
    text = json.dumps(value)
    try:
        found = read_legacy(text[: len(text) // 2] if cut else text, name="old.json")
    except RefractError as error:
        refused_in_one_line(error)
        return
    assert found is None or (isinstance(found.candidate, str) and "/" not in found.model)
