"""The control in reports: what cannot be told from noise has no rank, and every form says so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from refract.report import to_html, to_markdown, to_text
from refract.report.noise import control_note, control_rows
from refract.report.ranking import rank
from refract.report.words import halving_words
from refract.results import CandidateResult, Composite, Report, SelfNoise
from tests.report.builder import noise, report


def drowned() -> Report:
    """A report whose control is as large as the loss of the two closest candidates."""
    plain = report()
    assert plain.control is not None
    kld = next(axis for axis in plain.candidates[0].axes if axis.axis == "kld")
    axes = tuple(kld if axis.axis == "kld" else axis for axis in plain.control.axes)
    return replace(plain, control=replace(plain.control, axes=axes, control=noise(0.0168, 0.95)))


def ranks(found: Report) -> dict[str, int | None]:
    return {row.candidate.kv: row.rank for row in rank(found.candidates, found.control).rows}


def test_what_lies_within_twice_the_control_has_no_rank_and_the_others_keep_theirs() -> None:
    with_noise, without = ranks(drowned()), ranks(replace(drowned(), control=None))
    assert [kv for kv in with_noise if with_noise[kv] != without[kv]] == ["ctk=q8_0,ctv=turbo4", "ctk=q8_0,ctv=turbo3"]
    assert with_noise["ctk=q8_0,ctv=turbo3"] is None
    assert with_noise["ctk=q4_0,ctv=q4_0"] == without["ctk=q4_0,ctv=q4_0"]


def test_a_row_within_noise_keeps_its_score_and_place() -> None:
    rows = rank(drowned().candidates, drowned().control).rows
    assert [row.candidate.kv for row in rows] == [row.candidate.kv for row in rank(drowned().candidates).rows]
    assert all(row.score is not None and not row.tied for row in rows if row.noise)


@pytest.mark.parametrize("form", [to_text, to_html, to_markdown])
def test_every_form_names_the_change_the_noise_and_who_drowns_in_it(form: object) -> None:
    assert callable(form)
    shown = " ".join(form(drowned()).replace("\\", "").split())
    assert "under batch 8, chunk 128, against itself" in shown
    assert "Not distinguishable from kernel noise: ctk=q8_0,ctv=turbo3, ctk=q8_0,ctv=turbo4" in shown
    assert "0.0168 nats" in shown
    assert "95.0 %" in shown


@pytest.mark.parametrize("form", [to_text, to_html, to_markdown])
def test_without_a_control_nothing_is_said_of_one(form: object) -> None:
    assert callable(form)
    plain = report()
    bare = replace(plain, control=None, candidates=tuple(replace(c, control=None) for c in plain.candidates))
    assert "batch 8, chunk 128" not in form(bare)


def test_what_was_not_measured_is_a_dash_and_what_is_not_finite_is_not_known() -> None:
    plain = report()
    lost = SelfNoise(change="chunk 128", mean_kl_nats=None, top1_agreement=None, positions=0)
    first = replace(plain.candidates[0], control=lost)
    rows = control_rows(replace(plain, candidates=(first, plain.candidates[2])))
    assert rows[1][2:] == ("not known", "not known")
    assert rows[2][2:] == ("–", "–")
    assert "Not distinguishable" not in control_note(plain)


def halving(composite: Composite) -> str:
    candidate: CandidateResult = replace(report().candidates[0], composite=composite)
    return halving_words(candidate)


def test_four_times_the_clusters_halve_an_interval() -> None:
    found = report().candidates[0].composite
    assert (
        halving(found) == "About 48 prompts, 32 windows and 24 haystacks would halve this interval (now 12, 8 and 6)."
    )
    only = replace(found, axes=("trajectory",))
    assert halving(only) == "About 48 prompts would halve this interval (now 12)."


def test_where_nothing_can_be_said_of_the_interval_nothing_is() -> None:
    found = report().candidates[0].composite
    assert found.score is not None
    exact = replace(found.score, low=found.score.value, high=found.score.value)
    assert halving(replace(found, score=exact)) == ""
    assert halving(replace(found, score=replace(found.score, method="one-cluster"))) == ""
    assert halving(Composite(score=None, reason="none is ok")) == ""
