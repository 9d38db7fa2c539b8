"""--control and --explain on the command line: off, on, and what they cost."""

from __future__ import annotations

import pytest

from refract.report.jsonfile import from_json
from refract.testing import Behaviour
from tests.cli.conftest import CANDIDATE, Shell

BAD = "ctk=turbo2,ctv=turbo2"


def test_a_control_is_asked_for_and_reaches_the_report(refract: Shell) -> None:
    ran = refract.score("--control", "--json-out", "-")
    report = from_json(ran.out)
    assert report.control is not None
    assert report.candidates[0].control is not None
    assert report.candidates[0].control.change == "chunk 128"
    assert report.provenance.loads == len(refract.engine.loads) == 4
    assert from_json(refract.score("--json-out", "-").out).control is None


def test_a_control_scored_again_needs_no_load(refract: Shell) -> None:
    first = from_json(refract.score("--control", "--json-out", "-").out)
    again = from_json(refract("rescore", *refract.small, "--control", "--json-out", "-").out)
    assert again.provenance.loads == 0
    assert (again.control, again.candidates) == (first.control, first.candidates)


def test_the_engine_decides_where_neither_is_given_and_only_the_reference_is_run_again(refract: Shell) -> None:
    refract.engine.control_by_default = True
    report = from_json(refract.score("--json-out", "-").out)
    assert report.control is not None
    assert report.candidates[0].control is None
    assert report.provenance.loads == 3
    assert from_json(refract.score("--no-control", "--json-out", "-").out).control is None


def bad(refract: Shell, *words: str) -> list[str]:
    """The configurations loaded for a candidate far below PASS."""
    refract.engine.candidate_behaviour = Behaviour.CONSTANT_JUNK
    small = refract.small[: -len(("--candidate", CANDIDATE))]
    assert refract("score", *small, "--candidate", BAD, *words).code == 0
    return refract.engine.loads


def test_one_candidate_below_pass_is_explained_by_default(refract: Shell) -> None:
    assert bad(refract)[2:] == ["ctk=turbo2,ctv=f16", "ctk=f16,ctv=turbo2"]


def test_several_are_explained_only_when_asked(refract: Shell) -> None:
    assert len(bad(refract, "--candidate", CANDIDATE)) == 3
    bad(refract, "--candidate", CANDIDATE, "--explain")
    assert "ctk=turbo2,ctv=f16" in refract.engine.loads


def test_no_explain_turns_it_off(refract: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(bad(refract, "--no-explain")) == 2
    monkeypatch.setenv("REFRACT_NO_EXPLAIN", "1")
    assert len(bad(refract, "--no-cache")) == 4


@pytest.mark.parametrize("pair", [("--control", "--no-control"), ("--explain", "--no-explain")])
def test_both_at_once_are_refused(refract: Shell, pair: tuple[str, str]) -> None:
    ran = refract.score(*pair)
    assert ran.code == 2
    assert "not allowed with" in ran.err


def test_repeatability_has_neither(refract: Shell) -> None:
    assert refract("repeatability", *refract.small, "--control").code == 2
