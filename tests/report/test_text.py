from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from refract.report.text import to_text
from refract.results import BAND_FLOORS, Composite, Report

from .builder import report
from .goldens import check
from .strategies import reports

LIGHT = settings(max_examples=60, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def one(index: int = 0) -> Report:
    """The built report with a single candidate."""
    whole = report()
    return replace(whole, candidates=(whole.candidates[index],))


@pytest.mark.parametrize("name", ["report.txt", "one.txt"])
def test_golden_file(name: str) -> None:
    check(name, to_text(report() if name == "report.txt" else one()))


@LIGHT
@given(reports, st.integers(60, 120), st.booleans())
def test_fits_and_holds_no_control_characters(value: Report, width: int, ascii: bool) -> None:
    text = to_text(value, width=width, ascii=ascii)
    assert max(map(cell_len, text.split("\n"))) <= width
    assert not CONTROL.search(text)
    assert text.endswith("\n")
    if ascii:
        assert text.isascii()


@pytest.mark.parametrize("width", [60, 72, 80, 100, 120])
@pytest.mark.parametrize("name", ["q8_0", "ctk=q8_0," + "x" * 300, "漢" * 90])
def test_long_names_are_folded_and_never_cut(width: int, name: str) -> None:
    whole = report()
    text = to_text(
        replace(whole, candidates=(replace(whole.candidates[0], kv=name), *whole.candidates[1:])), width=width
    )
    assert max(map(cell_len, text.split("\n"))) <= width
    for candidate in whole.candidates:
        for axis in candidate.axes:
            if axis.score is not None:
                assert f"{axis.score.value:5.1f} [{axis.score.low:.1f}, {axis.score.high:.1f}]" in text
    assert text.count(name[-1]) >= name.count(name[-1]) * 2


def test_the_verdict_comes_first() -> None:
    first = to_text(one()).splitlines()[0]
    assert re.match(r"ctk=q8_0,ctv=turbo3: EXCELLENT  \d+\.\d \[\d+\.\d, \d+\.\d\]", first)


def test_a_borderline_band_names_both() -> None:
    score = one().candidates[0].composite
    chances = {"EXCELLENT": 0.0, "PASS": 0.55, "DEGRADED": 0.45, "FAIL": 0.0}
    unsure = replace(score, band="PASS", band_certain=False, band_probability=chances)
    whole = one()
    text = to_text(replace(whole, candidates=(replace(whole.candidates[0], composite=unsure),)))
    assert text.startswith("ctk=q8_0,ctv=turbo3: PASS/DEGRADED borderline (P 0.55/0.45)")


def test_a_missing_score_is_its_reason_and_no_number() -> None:
    text = to_text(one(2))
    row = next(line for line in text.splitlines() if line.startswith("rniah"))
    assert "low confidence" in row
    assert not re.search(r"\d", row.replace("·", ""))
    assert "rniah: no score: the reference retrieved 2 of 18 needles, 6 are needed" in text
    assert "no score" in to_text(one(4)).splitlines()[0]


def test_several_candidates_are_ranked_first() -> None:
    lines = to_text(report()).splitlines()
    assert lines[0].split() == ["candidate", "rank", "score", "band", "KV", "size"]
    assert any("1=" in line for line in lines[:6])
    assert any("Pareto" in line for line in lines[:10])


def test_perplexity_is_shown_and_never_scored() -> None:
    rows = [line for line in to_text(one()).splitlines() if "perplexity" in line]
    assert len(rows) == 2
    assert all(row.endswith("(shown, never scored)") for row in rows)


def test_colour_repeats_what_words_say() -> None:
    plain, coloured = to_text(report()), to_text(report(), color=True)
    assert "\x1b[" in coloured
    assert "\x1b[" not in plain
    stripped = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert [line.rstrip() for line in stripped.splitlines()] == plain.splitlines()


def test_hostile_text_is_inert() -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\u202eevil\r\n" + "A" * 1_000_000
    whole = one()
    text = to_text(replace(whole, findings=(evil,), model=replace(whole.model, name=evil)), color=True)
    assert r"\x1b]0;owned\x07\x1b[2J\u202eevil\r\n" in text.replace("\n", "").replace(" ", "")
    assert "\x1b]" not in text
    assert len(text) < 30_000
    assert "more characters not shown" in " ".join(text.split())


def test_markup_is_not_interpreted() -> None:
    whole = one()
    assert "[bold red]x[/] :smile:" in to_text(replace(whole, findings=("[bold red]x[/] :smile:",)))


def test_no_candidate_and_no_axis() -> None:
    whole = report()
    assert "no candidate was measured" in to_text(replace(whole, candidates=()))
    bare = replace(whole.candidates[0], axes=(), composite=Composite(score=None, reason="nothing ran"))
    assert "no axis was measured" in to_text(replace(whole, candidates=(bare,)))


def test_every_band_has_a_style() -> None:
    from refract.report.pen import BAND_STYLES

    assert BAND_STYLES.keys() == BAND_FLOORS.keys()
