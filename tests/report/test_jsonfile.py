from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import replace

import jsonschema  # type: ignore[import-untyped]  # its stubs are a package of their own
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from refract.errors import ReportError
from refract.report.decode import FIELDS
from refract.report.jsonfile import from_json, schema, to_json
from refract.results import Report, Sample

from .builder import report
from .goldens import check
from .strategies import reports

LIGHT = settings(max_examples=40, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))


@LIGHT
@given(reports)
def test_round_trip(value: Report) -> None:
    text = to_json(value)
    assert from_json(text) == value
    assert to_json(from_json(text)) == text
    text.encode()


@LIGHT
@given(reports)
def test_random_reports_keep_to_the_published_schema(value: Report) -> None:
    _validator().validate(json.loads(to_json(value)))


def test_the_built_report_keeps_to_the_published_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    _validator().validate(json.loads(to_json(report())))


def _validator() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(schema())


def test_golden_file() -> None:
    check("report.json", to_json(report()))


@pytest.mark.parametrize("kind", FIELDS, ids=lambda kind: kind.__name__)
def test_every_field_of_every_value_is_written_and_in_the_schema(kind: type) -> None:
    fields = [f.name for f in dataclasses.fields(kind)]
    assert sorted(FIELDS[kind]) == sorted(fields)
    assert any(
        sorted(d.get("properties", {})) == sorted(fields) for d in json.loads(json.dumps(schema()))["$defs"].values()
    )


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match=r"\$\.candidates\[0\]\.axes\[0\]\.samples\[0\]\.detail\.kl: (nan|inf|-inf)"):
        to_json(_with_detail({"kl": bad}))


def test_values_json_has_no_form_for_are_refused() -> None:
    with pytest.raises(TypeError, match=r"detail\.x: a set"):
        to_json(_with_detail({"x": {1}}))


def _with_detail(detail: dict[str, object]) -> Report:
    whole = report()
    axis = whole.candidates[0].axes[0]
    sample = Sample(id="p", cluster="p", numerator=1.0, denominator=1.0, detail=detail)  # type: ignore[arg-type]
    candidate = replace(whole.candidates[0], axes=(replace(axis, samples=(sample,)),))
    return replace(whole, candidates=(candidate,))


def test_text_that_terminals_act_on_is_spelled_out() -> None:
    text = to_json(_with_detail({"x": "\x1b[31m\x9b31m\u202e\ud800 é漢"}))
    assert r"\u001b[31m\u009b31m\u202e\ud800 é漢" in text


@pytest.mark.parametrize("cut", [1, 40, 2000, -3])
def test_a_truncated_file_says_where(cut: int) -> None:
    with pytest.raises(ReportError, match=r"r\.json is cut off: .* at line \d+, column \d+"):
        from_json(to_json(report())[:cut], source="r.json")


@pytest.mark.parametrize("text", ["", "hello", "{'a': 1}", '{"a": NaN}', "[" * 100_000, '{"a": 1, "a": 2}', "1" * 9000])
def test_text_that_is_not_json_is_refused(text: str) -> None:
    with pytest.raises(ReportError, match=r"r\.json"):
        from_json(text, source="r.json")


@pytest.mark.parametrize("found", ["refract.report.v0.3.2", "refract.report/2", 7])
def test_another_schema_names_both(found: object) -> None:
    with pytest.raises(ReportError, match=rf"r\.json: expected .*'refract\.report/1', found schema '{found}'"):
        from_json(json.dumps({"schema": found, "score": 91.2}), source="r.json")


@pytest.mark.parametrize("text", ["{}", "[]", "3", "null", '"x"'])
def test_no_schema(text: str) -> None:
    with pytest.raises(ReportError, match="found no schema"):
        from_json(text)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["candidates", 0, "kv"], ..., r"\$\.candidates\[0\]\.kv is missing"),
        (["candidates", 0, "speed"], 1, r"\$\.candidates\[0\]\.speed is not a field"),
        (["candidates", 0, "kv"], 3, r"\$\.candidates\[0\]\.kv: expected a string, found 3"),
        (["methodology", "n_predict"], 1.5, r"\$\.methodology\.n_predict: expected an integer, found 1\.5"),
        (["methodology", "n_predict"], True, r"\$\.methodology\.n_predict: expected an integer, found True"),
        (["candidates", 0, "axes", 0, "status"], "fine", r"axes\[0\]\.status: expected one of ok, .*found 'fine'"),
        (["candidates", 0, "axes", 0, "status"], [], r"axes\[0\]\.status: expected one of ok, .*found a list"),
        (["candidates", 0, "axes", 0, "score", "low"], 1e999, r"score\.low: expected a finite number, found inf"),
        (["candidates", 0, "axes", 0, "score", "low"], 10**400, r"score\.low: expected a finite number"),
        (["candidates", 0, "axes", 0, "score", "value"], 101, r"axes\[0\]\.score: 101\.0 lies outside"),
        (["candidates", 0, "axes", 0, "samples"], [], r"axes\[0\]: trajectory: no measurement, no number"),
        (["candidates", 0, "axes"], {}, r"axes: expected an array, found a dict"),
        (["candidates", 0, "composite", "band_certain"], 1, r"band_certain: expected true or false, found 1"),
        (["provenance", "packages", "mlx"], None, r"packages\.mlx: expected a string, found None"),
        (["provenance"], None, r"\$\.provenance: expected an object, found None"),
    ],
)
def test_damage_is_found_at_its_path(path: list[str | int], value: object, message: str) -> None:
    parsed = json.loads(to_json(report()))
    place = parsed
    for step in path[:-1]:
        place = place[step]
    if value is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    with pytest.raises(ReportError, match=message):
        from_json(json.dumps(parsed).replace("Infinity", "1e999"))
