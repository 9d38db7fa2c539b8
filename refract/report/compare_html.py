"""Comparisons and changes as one HTML file, in the style of the report's page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from refract.report.changes import Changes
from refract.report.compare import Comparison, Differing, Group
from refract.report.compare_text import (
    LEGACY_COLUMNS,
    against_cells,
    change_cells,
    changes_note,
    changes_verdict,
    legacy_cells,
    some,
)
from refract.report.grids import Grid
from refract.report.html import page
from refract.report.legacy import LISTED
from refract.report.pages import comparison_chart
from refract.report.plain import line
from refract.report.ranking import ranking_note
from refract.report.text_tables import ranked_cells

MOST_POINTS = 12  # in one chart: more names cannot be told apart
_CELL = 300  # characters of one cell


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading with tables below it, and a chart where there is one."""

    anchor: str
    title: str
    about: str = ""
    tables: tuple[Grid, ...] = ()
    chart: Markup | None = None


def comparison_html(comparison: Comparison) -> str:
    """The comparison as a self-contained page: a ranking for each group, what differs, and reports listed only.

    All text of models and users is escaped; the same comparison always gives the same text.
    """
    groups = comparison.groups
    reports = sum(len(group.reports) for group in groups) + len(comparison.legacy)
    lead = f"{len(groups)} groups that must not be ranked against each other" if len(groups) > 1 else ""
    title = f"{reports} reports compared" if reports > 1 else "1 report"
    return page("compare.html.j2", title=title, lead=lead, sections=list(_sections(comparison)))


def changes_html(changes: Changes) -> str:
    """What changed between two reports, as a self-contained page."""
    tables = []
    for kv in dict.fromkeys(change.kv for change in changes.rows):
        rows = [change_cells(change) for change in changes.rows if change.kv == kv]
        tables.append(_grid(kv, ("Score of", "Old", "New", "New − old", "Verdict"), rows, figures=(1, 2)))
    found = Section(anchor="changes", title="Changes", about=changes_note(changes), tables=tuple(tables))
    sections = [found, *_differing(changes.differing)]
    return page("compare.html.j2", title=changes_verdict(changes).capitalize(), lead="", sections=sections)


def _sections(comparison: Comparison) -> Iterator[Section]:
    for number, group in enumerate(comparison.groups, start=1):
        yield _group(group, number)
    yield from _differing(comparison.differing)
    if comparison.legacy:
        headers = tuple(name.capitalize() for name in LEGACY_COLUMNS)
        listed = _grid("Another methodology", headers, map(legacy_cells, comparison.legacy))
        yield Section(anchor="legacy", title="Reports of refract-llm", about=LISTED, tables=(listed,))


def _group(group: Group, number: int) -> Section:
    rows = [ranked_cells(row, group.sizes.get(row.candidate.kv, 0.0)) for row in group.ranking.rows]
    note = ranking_note(group.ranking) if group.ranking.name else ""
    headers = ("Candidate", "Rank", "Score", "Band", "KV size")
    tables = [_grid("Ranking", headers, rows, figures=(2,), note=note)]
    if group.against:
        columns = ("Candidate", "Behind by", "Needles: p (McNemar, Holm)")
        title = "Points behind the first, paired on the same prompts and windows"
        tables.append(_grid(title, columns, map(against_cells, group.against), figures=(1, 2)))
    chart = None
    if len(group.ranking.rows) <= MOST_POINTS:
        chart = comparison_chart(group.ranking, max(group.sizes.values(), default=0.0))
    return Section(
        anchor=f"group-{number}",
        title=line(group.model, _CELL),
        about=line(f"{', '.join(group.engines)} · methodology {group.methodology} · {some(group.reports)}"),
        tables=tuple(tables),
        chart=chart,
    )


def _differing(differing: Sequence[Differing]) -> Iterator[Section]:
    if differing:
        rows = [(d.what, value, some(names)) for d in differing for value, names in d.values]
        table = _grid("What is not the same in all reports", ("What", "Value", "Reports"), rows)
        yield Section(anchor="differing", title="What differs", tables=(table,))


def _grid(
    title: str, headers: tuple[str, ...], rows: Iterable[Sequence[str]], *, figures: Sequence[int] = (), note: str = ""
) -> Grid:
    return Grid(
        title=line(title, _CELL),
        headers=headers,
        rows=tuple(tuple(line(cell, _CELL) for cell in row) for row in rows),
        figures=tuple(i in figures for i in range(len(headers))),
        note=line(note),
    )
