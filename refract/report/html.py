"""Reports as one HTML file that needs nothing else: no network, no scripts to be readable."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from refract.report.plain import line
from refract.report.ranking import rank
from refract.report.text import provenance_rows
from refract.report.words import size_words
from refract.results import Report

if TYPE_CHECKING:
    from jinja2 import Template


def to_html(report: Report) -> str:
    """The report as a self-contained page; the same report always gives the same text.

    All text of models and users is escaped, and a content security policy allows no script or style but the page's own,
    and no connection at all.
    """
    from refract.report.charts import score_scale
    from refract.report.pages import candidate_view, comparison_chart, control_view

    ranking = rank(report.candidates, report.control)
    views = [candidate_view(row.candidate, i, report) for i, row in enumerate(ranking.rows, start=1)]
    style, script = _part("report.css"), _part("report.js")
    reference = report.reference.effective
    return _template().render(
        report=report,
        views=views,
        ranking=[
            (view, row, size_words(row.candidate.effective, reference) or "not known", row.candidate.effective)
            for view, row in zip(views, ranking.rows, strict=True)
        ],
        ranking_name=ranking.name,
        size_chart=comparison_chart(ranking, reference.bytes_per_token),
        scale=score_scale(),
        findings=[line(text) for text in report.findings],
        control=control_view(report),
        provenance=[(name, line(value)) for name, value in provenance_rows(report)],
        style=style,
        script=script,
        policy=f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'",
    )


def _part(name: str) -> str:
    return files("refract.report").joinpath("templates", name).read_text(encoding="utf-8").strip()


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


@cache
def _template() -> Template:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("refract.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["line"] = line
    return environment.get_template("report.html.j2")
