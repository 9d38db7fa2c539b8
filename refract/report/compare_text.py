"""Comparisons and changes as plain text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from refract.report.changes import Change, Changes
from refract.report.compare import Against, Comparison, Differing, Group
from refract.report.legacy import LISTED, LegacyReport
from refract.report.text import NARROWEST, printed
from refract.report.words import interval
from refract.results import Estimate

if TYPE_CHECKING:
    from rich.console import RenderableType

    from refract.report.pen import Pen


def comparison_text(comparison: Comparison, *, width: int = 80, color: bool = False, ascii: bool = False) -> str:
    """The comparison in lines of at most `width` cells: a ranking for each group, then what differs."""
    from refract.report.pen import Pen

    pen = Pen(ascii=ascii, width=max(NARROWEST, width))
    return printed(_comparison(comparison, pen), pen.width, color=color)


def changes_text(changes: Changes, *, width: int = 80, color: bool = False, ascii: bool = False) -> str:
    """What changed between two reports, in lines of at most `width` cells, the number of regressions first."""
    from refract.report.pen import Pen

    pen = Pen(ascii=ascii, width=max(NARROWEST, width))
    return printed(_changes(changes, pen), pen.width, color=color)


def _comparison(comparison: Comparison, pen: Pen) -> Iterator[RenderableType]:
    from refract.report.text_tables import table

    if len(comparison.groups) > 1:
        yield pen.text(f"{len(comparison.groups)} groups that must not be ranked against each other", "bold")
        yield ""
    for group in comparison.groups:
        yield from _group(group, pen)
        yield ""
    yield from _differing(comparison.differing, pen)
    if comparison.legacy:
        yield ""
        yield pen.text("Reports of refract-llm, another methodology", "bold")
        rows = [[pen.text(cell) for cell in legacy_cells(report)] for report in comparison.legacy]
        yield table(pen, ("<report", "<candidate", "<its score!", "<model", "<version!"), rows)
        yield pen.text(LISTED, "dim")


def _differing(differing: Sequence[Differing], pen: Pen) -> Iterator[RenderableType]:
    from refract.report.text_tables import table

    if not differing:
        return
    yield pen.text("What differs", "bold")
    rows = [
        [pen.text(d.what if i == 0 else ""), pen.text(value), pen.text(some(names))]
        for d in differing
        for i, (value, names) in enumerate(d.values)
    ]
    yield table(pen, ("<", "<value", "<reports"), rows, keep=22)


MOST_NAMES, FEW_NAMES = 6, 3  # of reports in one cell
LEGACY_COLUMNS = ("report", "candidate", "its score", "model", "version")


def legacy_cells(report: LegacyReport) -> tuple[str, str, str, str, str]:
    """`LEGACY_COLUMNS` of one report, its score marked as not ours."""
    score = "–" if report.composite is None else f"({report.composite:.1f} {report.band})"
    return report.name, report.candidate, score, report.model, report.version


def some(names: Sequence[str]) -> str:
    """The names, or the first few of very many and how many more there are."""
    if len(names) <= MOST_NAMES:
        return ", ".join(names)
    return f"{', '.join(names[:FEW_NAMES])} and {len(names) - FEW_NAMES} more"


def _group(group: Group, pen: Pen) -> Iterator[RenderableType]:
    from refract.report.ranking import ranking_note
    from refract.report.text_tables import ranking_rows, table

    yield pen.text(f"{group.model}, {', '.join(group.engines)}", "bold")
    yield pen.text(f"methodology {group.methodology}; {some(group.reports)}", "dim")
    yield ranking_rows(group.ranking, group.sizes, pen)
    if group.ranking.name:
        yield pen.text(ranking_note(group.ranking), "dim")
    if group.against:
        yield ""
        yield pen.text("Points behind the first, paired on the same prompts and windows")
        rows = [[pen.text(cell) for cell in against_cells(row)] for row in group.against]
        yield table(pen, ("<candidate", "<behind by!", "<needles: p (McNemar, Holm)"), rows, keep=22)


def against_cells(row: Against) -> tuple[str, str, str]:
    """Name, difference and p-value as words."""
    behind = f"{row.difference.value:.1f} {interval(row.difference)}" if row.difference else f"not known: {row.note}"
    return row.name, behind, "–" if row.mcnemar_p is None else f"{row.mcnemar_p:.3g}"


def _changes(changes: Changes, pen: Pen) -> Iterator[RenderableType]:
    from refract.report.text_tables import table

    yield pen.text(changes_verdict(changes), "bold red" if changes.regressions else "bold green")
    for kv in dict.fromkeys(change.kv for change in changes.rows):
        yield ""
        yield pen.text(kv, "bold")
        rows = [[pen.text(cell) for cell in change_cells(change)] for change in changes.rows if change.kv == kv]
        yield table(pen, ("<score of", ">old!", ">new!", "<new − old!", "<verdict"), rows, keep=14)
    yield ""
    yield pen.text(changes_note(changes), "dim")
    if changes.differing:
        yield ""
        yield from _differing(changes.differing, pen)


def changes_verdict(changes: Changes) -> str:
    """How many scores are worse, in words."""
    worse, every = len(changes.regressions), len(changes.rows)
    return (
        f"{worse} of {every} scores {'is' if worse == 1 else 'are'} worse"
        if worse
        else f"none of {every} scores is worse"
    )


def changes_note(changes: Changes) -> str:
    """How the verdicts were reached, and what the new report lacks."""
    note = (
        "Differences are paired on the same prompts and windows, with 95 % intervals; worse and better hold after"
        f" Holm's correction over the {changes.tested} scores compared."
    )
    return f"{note} Not in the new report: {', '.join(changes.missing)}." if changes.missing else note


def regression_line(change: Change) -> str:
    """What got worse and by how much, in a line."""
    if change.verdict == "lost" or change.old is None or change.new is None or change.difference is None:
        return f"{change.kv}: the score of {change.what} is gone: {change.note or 'not measured'}"
    moved = f"by {-change.difference.value:.1f} points, {interval(change.difference)}"
    return f"{change.kv}: {change.what} fell from {change.old.value:.1f} to {change.new.value:.1f}, {moved}"


def change_cells(change: Change) -> tuple[str, str, str, str, str]:
    """What, old, new, difference and verdict as words."""
    moved = f"{change.difference.value:+.1f} {interval(change.difference)}" if change.difference else "–"
    verdict = f"{change.verdict}: {change.note}" if change.note else change.verdict
    return change.what, _score(change.old), _score(change.new), moved, verdict


def _score(estimate: Estimate | None) -> str:
    return "–" if estimate is None else f"{estimate.value:.1f}"
