"""Reports as JUnit XML, which CI systems show as tests: a suite for each candidate, a case for each axis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from refract.report.plain import line
from refract.report.words import STATUS_WORDS, band_words, interval
from refract.results import AxisResult, CandidateResult, Report

LONGEST = 500


def to_junit(report: Report, missed: Mapping[str, Sequence[str]] | None = None) -> str:
    """The report as JUnit XML: a suite for each candidate, with its composite and axes as cases.

    `missed` has, by a candidate's KV text, a line for each threshold it misses: those are failures of the composite's
    case, for a report on its own judges nothing. An axis that failed is an error, one that was not exercised a failure,
    one that was not run is skipped. Text holds no character that XML 1.0 has no room for.
    """
    root = Element("testsuites", name=f"refract {report.model.name}"[:LONGEST])
    for candidate in report.candidates:
        _suite(root, candidate, report, (missed or {}).get(candidate.kv, ()))
    for name in ("tests", "failures", "errors", "skipped"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in root)))
    for element in root.iter():
        element.attrib = {key: _legal(value) for key, value in element.attrib.items()}
        element.text = None if element.text is None else _legal(element.text)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _suite(root: Element, candidate: CandidateResult, report: Report, missed: Sequence[str]) -> None:
    suite = SubElement(root, "testsuite", name=candidate.kv, timestamp=report.created.removesuffix("Z"))
    properties = SubElement(suite, "properties")
    for name, value in _properties(candidate, report):
        SubElement(properties, "property", name=name, value=value)
    cases = [_composite(suite, candidate, missed), *(_axis(suite, candidate, axis) for axis in candidate.axes)]
    suite.set("tests", str(len(cases)))
    for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(name, str(sum(case.find(tag) is not None for case in cases)))


def _properties(candidate: CandidateResult, report: Report) -> Iterator[tuple[str, str]]:
    yield "model", report.model.name
    yield "engine", report.model.engine
    yield "reference", report.reference.kv
    yield "methodology", report.methodology.id
    yield "bytes_per_token", f"{candidate.effective.bytes_per_token:g}"


def _composite(suite: Element, candidate: CandidateResult, missed: Sequence[str]) -> Element:
    composite = candidate.composite
    case = SubElement(suite, "testcase", classname=candidate.kv, name=composite.name if composite.axes else "composite")
    for text in missed:
        SubElement(case, "failure", message=text, type="threshold").text = text
    if composite.score is None:
        if not missed:
            SubElement(case, "skipped", message=composite.reason or "no score")
    else:
        said = f"{composite.score.value:.1f} {interval(composite.score)} {band_words(composite)}"
        SubElement(case, "system-out").text = said
    return case


def _axis(suite: Element, candidate: CandidateResult, axis: AxisResult) -> Element:
    case = SubElement(suite, "testcase", classname=candidate.kv, name=axis.axis)
    said = axis.reason or STATUS_WORDS[axis.status]
    tags = {"failed": "error", "not-exercised": "failure", "not-run": "skipped"}
    if axis.status == "not-run":
        SubElement(case, "skipped", message=said)
    elif axis.status in tags:
        SubElement(case, tags[axis.status], message=said, type=axis.status).text = said
    if axis.score is not None:
        words = [f"{axis.score.value:.1f} {interval(axis.score)}", *axis.warnings, *axis.findings]
        low = [] if axis.status == "ok" else [f"{STATUS_WORDS[axis.status]}: {said}"]
        SubElement(case, "system-out").text = "; ".join([*low, *words])
    return case


def _legal(text: str) -> str:
    """`text` on one line, without what XML 1.0 cannot hold (§2.2): controls, surrogates, U+FFFE and U+FFFF."""
    return "".join(char for char in line(text, LONGEST) if char not in "\ufffe\uffff")
