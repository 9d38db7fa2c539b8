"""Reports as one HTML file that needs nothing else: no network, no scripts to be readable."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from refract.report.plain import line
from refract.report.ranking import Ranking, axis_of, rank
from refract.report.text import provenance_rows
from refract.report.words import size_words
from refract.results import Report

if TYPE_CHECKING:
    from jinja2 import Template

    from refract.report.pages import CandidateView

MOST_BYTES = 2_800_000  # of a page, with what does not belong to a candidate
EACH_BYTES = 60_000  # of one candidate without its prompts: charts, statistics, tables
LEAST_ROOM = 400_000  # for prompts, however many candidates there are


def to_html(report: Report) -> str:
    """The report as a self-contained page below 3 MB; the same report always gives the same text.

    All text of models and users is escaped, and a content security policy allows no script or style but the page's own,
    and no connection at all.
    """
    from refract.report.charts import score_scale
    from refract.report.pages import comparison_chart, control_view, settings_rows, tied_words

    ranking = rank(report.candidates, report.control)
    views = _views(ranking, report)
    reference = report.reference.effective
    return page(
        "report.html.j2",
        report=report,
        views=views,
        title=views[0].title if len(views) == 1 else f"{len(views)} candidates",
        tied=tied_words(ranking),
        ranking=[
            (view, row, size_words(row.candidate.effective, reference) or "not known", row.candidate.effective)
            for view, row in zip(views, ranking.rows, strict=True)
        ],
        ranking_name=ranking.name,
        size_chart=comparison_chart(ranking, reference.bytes_per_token),
        scale=score_scale(),
        findings=[line(text) for text in report.findings],
        control=control_view(report),
        provenance=[(name, line(value)) for name, value in provenance_rows(report)] + list(settings_rows(report)),
    )


def page(template: str, **values: object) -> str:
    """The named template as a page with its style and script inside, and a policy that allows nothing but those two."""
    style, script = _part("report.css"), _part("report.js")
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return _template(template).render(style=style, script=script, policy=policy, **values)


def _views(ranking: Ranking, report: Report) -> list[CandidateView]:
    from refract.report.pages import candidate_view
    from refract.report.prompts import fitting_views

    candidates = [row.candidate for row in ranking.rows]
    room = max(LEAST_ROOM, MOST_BYTES - EACH_BYTES * len(candidates))
    prompts = fitting_views([axis_of(candidate, "trajectory") for candidate in candidates], room)
    return [
        candidate_view(candidate, i, report, shown)
        for i, (candidate, shown) in enumerate(zip(candidates, prompts, strict=True), start=1)
    ]


def _part(name: str) -> str:
    return files("refract.report").joinpath("templates", name).read_text(encoding="utf-8").strip()


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


@cache
def _template(name: str) -> Template:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("refract.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["line"] = line
    return environment.get_template(name)
