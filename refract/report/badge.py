"""A candidate's verdict as a small SVG picture, for a README."""

from __future__ import annotations

from html import escape

from refract.report.plain import line
from refract.report.ranking import rank
from refract.report.words import band_words, interval
from refract.results import CandidateResult, Report

# White on each of them has a contrast of at least 4.5 (WCAG AA), and the words say what the colour does.
COLOURS = {"EXCELLENT": "#1a7f37", "PASS": "#1a7f37", "DEGRADED": "#8a5300", "FAIL": "#b3261e"}
UNCERTAIN, LABEL = "#5f6670", "#33383e"
_CHAR, _PAD, _HEIGHT = 6.6, 8.0, 20.0  # of 11-pixel Verdana, whose digits are 7 wide: room to spare
_LONGEST = 60


def to_badge(report: Report) -> str:
    """The verdict of the candidate that ranks first as an SVG picture: its KV configuration, score and band.

    A picture is one candidate's; where a report has several, its label says which. Same report, same bytes.
    """
    rows = rank(report.candidates, report.control).rows
    if not rows:
        return _picture("REFRACT", "not measured", UNCERTAIN, f"{report.model.name}: no candidate was measured")
    candidate = rows[0].candidate
    return _picture(f"REFRACT {candidate.kv}", _words(candidate), _colour(candidate), _title(candidate, report))


def _words(candidate: CandidateResult) -> str:
    score = candidate.composite.score
    return "no score" if score is None else f"{score.value:.1f} {_band(candidate)}"


def _band(candidate: CandidateResult) -> str:
    return band_words(candidate.composite).partition(" (")[0]


def _colour(candidate: CandidateResult) -> str:
    composite = candidate.composite
    return COLOURS[composite.band] if composite.band is not None and composite.band_certain else UNCERTAIN


def _title(candidate: CandidateResult, report: Report) -> str:
    composite = candidate.composite
    found = composite.reason if composite.score is None else f"{composite.score.value:.1f} {interval(composite.score)}"
    return f"{report.model.name}, {candidate.kv}: {found} {composite.name if composite.score else ''}".rstrip()


def _picture(label: str, words: str, colour: str, title: str) -> str:
    left, right = (line(text, _LONGEST) for text in (label, words))
    widths = [round(len(text) * _CHAR + 2 * _PAD, 1) for text in (left, right)]
    whole = round(sum(widths), 1)
    middles = (widths[0] / 2.0, widths[0] + widths[1] / 2.0)
    texts = "".join(
        f'<text x="{middle:.1f}" y="14" textLength="{width - 2 * _PAD:.1f}">{escape(text)}</text>'
        for text, middle, width in zip((left, right), middles, widths, strict=True)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{whole:g}" height="{_HEIGHT:g}" role="img"'
        f' aria-label="{escape(f"{left}: {right}")}"><title>{escape(line(title, 200))}</title>'
        f'<clipPath id="r"><rect width="{whole:g}" height="{_HEIGHT:g}" rx="3"/></clipPath><g clip-path="url(#r)">'
        f'<rect width="{widths[0]:g}" height="{_HEIGHT:g}" fill="{LABEL}"/>'
        f'<rect x="{widths[0]:g}" width="{widths[1]:g}" height="{_HEIGHT:g}" fill="{colour}"/></g>'
        f'<g fill="#fff" text-anchor="middle" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">{texts}</g>'
        "</svg>\n"
    )
