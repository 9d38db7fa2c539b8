"""Comparisons and changes as plain text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from refract.report.compare import Against, Change, Comparison, Group
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


def changes_text(changes: Sequence[Change], *, width: int = 80, color: bool = False, ascii: bool = False) -> str:
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
    if comparison.differing:
        yield pen.text("What differs", "bold")
        rows = [
            [pen.text(d.what if i == 0 else ""), pen.text(value), pen.text(", ".join(names))]
            for d in comparison.differing
            for i, (value, names) in enumerate(d.values)
        ]
        yield table(pen, ("<", "<value", "<reports"), rows, keep=22)


def _group(group: Group, pen: Pen) -> Iterator[RenderableType]:
    from refract.report.ranking import ranking_note
    from refract.report.text_tables import ranking_rows, table

    yield pen.text(f"{group.model}, {', '.join(group.engines)}", "bold")
    yield pen.text(f"methodology {group.methodology}; {', '.join(group.reports)}", "dim")
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


def _changes(changes: Sequence[Change], pen: Pen) -> Iterator[RenderableType]:
    from refract.report.text_tables import table

    worse = any(change.is_regression for change in changes)
    yield pen.text(changes_verdict(changes), "bold red" if worse else "bold green")
    for kv in dict.fromkeys(change.kv for change in changes):
        yield ""
        yield pen.text(kv, "bold")
        rows = [[pen.text(cell) for cell in change_cells(change)] for change in changes if change.kv == kv]
        yield table(pen, ("<score of", ">old!", ">new!", "<new − old!", "<verdict"), rows, keep=14)


def changes_verdict(changes: Sequence[Change]) -> str:
    """How many scores are worse, in words."""
    worse = sum(change.is_regression for change in changes)
    return f"{worse} of {len(changes)} scores are worse" if worse else f"none of {len(changes)} scores is worse"


def change_cells(change: Change) -> tuple[str, str, str, str, str]:
    """What, old, new, difference and verdict as words."""
    moved = f"{change.difference.value:+.1f} {interval(change.difference)}" if change.difference else "–"
    verdict = f"{change.verdict}: {change.note}" if change.note else change.verdict
    return change.what, _score(change.old), _score(change.new), moved, verdict


def _score(estimate: Estimate | None) -> str:
    return "–" if estimate is None else f"{estimate.value:.1f}"
