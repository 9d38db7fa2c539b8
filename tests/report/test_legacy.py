"""Reports of refract-llm are read for listing: theirs is theirs, ours is ours, and damage is neither."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refract.errors import ReportError
from refract.report import to_json
from refract.report.legacy import read_legacy

from .builder import report


def document(**changed: Any) -> str:
    """A report as refract-llm 0.3.2 writes it, shortened."""
    whole: dict[str, Any] = {
        "schema": "refract.report.v0.3.1",
        "framework_version": "0.3.2",
        "environment": {"backend": "llamacpp"},
        "timestamp": "2026-04-30T16:46:09",
        "model": "/Users/somebody/models/gemma.gguf",
        "reference": "ctk=f16,ctv=f16",
        "candidate": "ctk=q8_0,ctv=turbo4",
        "composite": 29.119378931499842,
        "band": "FAIL",
        "axes": {"gtm": {"score": 17.3}, "kld": {"score": None}, "rniah": {"score": 100.0}, "x": {"score": 1.0}},
    }
    return json.dumps(whole | changed)


def test_what_it_says_is_kept_under_our_names() -> None:
    found = read_legacy(document(), name="old.json")
    assert found is not None
    assert (found.version, found.engine, found.candidate) == ("v0.3.1", "llamacpp", "ctk=q8_0,ctv=turbo4")
    assert found.composite == pytest.approx(29.1194, abs=1e-4)
    assert found.axes == {"trajectory": 17.3, "kld": None, "rniah": 100.0}


@pytest.mark.parametrize("model", ["/Users/somebody/m/gemma.gguf", r"C:\Users\somebody\m\gemma.gguf", "gemma.gguf"])
def test_no_folder_of_anybody_is_carried_on(model: str) -> None:
    found = read_legacy(document(model=model), name="old.json")
    assert found is not None
    assert found.model == "gemma.gguf"


@pytest.mark.parametrize("version", ["v0.1.4", "v0.2.0", "v0.3.1", "v0.3.2"])
def test_every_version_of_it_is_known(version: str) -> None:
    assert read_legacy(document(schema=f"refract.report.{version}"), name="x") is not None


@pytest.mark.parametrize("text", ["", "null", "[]", '{"schema": "refract.report.v1.0"}', '{"schema": 3}', "{"])
def test_anything_else_is_not_one(text: str) -> None:
    assert read_legacy(text, name="x") is None


def test_ours_is_not_one_even_when_it_speaks_of_one() -> None:
    assert read_legacy(to_json(report()), name="x") is None
    assert read_legacy('{"schema": "refract.report/1", "note": "refract.report.v0.3.1"}', name="x") is None
    assert read_legacy(document()[:-1], name="x") is None


@pytest.mark.parametrize("composite", [None, True, "99", -1.0, 101.0, float("nan"), float("inf")])
def test_a_score_that_is_none_stays_none(composite: object) -> None:
    found = read_legacy(document(composite=composite), name="x")
    assert found is not None
    assert found.composite is None


@pytest.mark.parametrize("lacking", ["model", "candidate"])
def test_without_its_subject_it_is_refused(lacking: str) -> None:
    with pytest.raises(ReportError, match=r"x\.json: a report of refract\.report\.v0\.3\.1 without"):
        read_legacy(document(**{lacking: None}), name="x.json")


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from([*json.loads(document()), "axes", "environment"]), JSON, max_size=5))
def test_whatever_its_fields_hold_it_is_read_or_refused(changed: dict[str, Any]) -> None:
    whole = json.loads(document(**changed))
    if str(whole["schema"]).startswith("refract.report.v0.") and not all(
        isinstance(whole[name], str) for name in ("model", "candidate")
    ):
        with pytest.raises(ReportError, match="without its model or its candidate"):
            read_legacy(document(**changed), name="x")
        return
    found = read_legacy(document(**changed), name="x")
    if found is not None:
        assert found.composite is None or 0.0 <= found.composite <= 100.0
        assert isinstance(found.model + found.candidate + found.band + found.engine + found.reference, str)
