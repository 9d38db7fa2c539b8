"""JUnit XML: well-formed whatever the text, counts that add up, a failure only where something failed."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from refract.report.junit import to_junit
from refract.results import Report

from .builder import report
from .goldens import check
from .strategies import reports

LIGHT = settings(max_examples=25, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))


def test_golden_file() -> None:
    check("report.junit.xml", to_junit(report(), {"ctk=q4_0,ctv=q4_0": ["below --fail-under 80"]}))


def test_each_axis_is_a_case_and_each_kind_of_ending_has_its_mark() -> None:
    root = ElementTree.fromstring(to_junit(report()))
    assert (root.get("tests"), root.get("errors"), root.get("failures")) == ("25", "1", "4")
    broken = {case.get("name"): [child.tag for child in case] for case in root[3].iter("testcase")}
    assert broken["kld"] == ["error"]
    assert broken["rniah"] == broken["plad"] == ["skipped"]
    assert broken["trajectory"] == ["system-out"]
    idle = [[child.tag for child in case] for case in root[4].iter("testcase")]
    assert idle == [["skipped"], *[["failure"]] * 4]


def test_a_missed_threshold_fails_the_composite_of_its_candidate_alone() -> None:
    kv = "ctk=q8_0,ctv=turbo3"
    plain, judged = (
        ElementTree.fromstring(to_junit(report(), missed)) for missed in (None, {kv: ["too low", "a < b"]})
    )
    assert plain[0].get("failures") == "0"
    assert judged[0].get("failures") == "1"
    assert [failure.get("message") for failure in judged[0].iter("failure")] == ["too low", "a < b"]
    assert [suite.get("failures") for suite in judged][1:] == [suite.get("failures") for suite in plain][1:]


@LIGHT
@given(reports)
def test_every_report_gives_well_formed_xml_whose_counts_add_up(value: Report) -> None:
    root = ElementTree.fromstring(to_junit(value))
    for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        assert int(root.get(name, "")) == sum(case.find(tag) is not None for case in root.iter("testcase"))
    assert int(root.get("tests", "")) == len(list(root.iter("testcase")))


@LIGHT
@given(st.text(alphabet=st.characters(), max_size=40))
def test_any_text_is_held(text: str) -> None:
    whole = report()
    changed = replace(whole, model=replace(whole.model, name=text), candidates=(replace(whole.candidates[0], kv=text),))
    assert ElementTree.fromstring(to_junit(changed, {text: [text]})).tag == "testsuites"
    assert ElementTree.fromstring(to_junit(changed).encode("utf-8", "strict")).tag == "testsuites"
