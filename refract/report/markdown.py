"""Reports and comparisons as Markdown, for the step summary of a continuous-integration run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from refract.report.changes import Changes
from refract.report.compare import Comparison, Differing
from refract.report.compare_text import (
    LEGACY_COLUMNS,
    against_cells,
    change_cells,
    changes_note,
    changes_verdict,
    legacy_cells,
    some,
)
from refract.report.legacy import LISTED
from refract.report.noise import COLUMNS, control_note, control_rows, control_summary, control_title
from refract.report.plain import line
from refract.report.ranking import Ranking, rank, ranking_note
from refract.report.text import provenance_rows
from refract.report.text_tables import key_statistics
from refract.report.words import STATUS_WORDS, counted, halving_words, interval, verdict
from refract.results import CandidateResult, Report

LONGEST = 500
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~$@!&])")


def safe(text: str) -> str:
    """`text` as Markdown that shows just it: on one line, without markup, HTML, mentions or links."""
    plain = _SPECIAL.sub(r"\\\1", line(text, LONGEST))
    return plain.replace("://", ":\u200b//").replace("www.", "www\u200b.")


def to_markdown(report: Report) -> str:
    """The report as GitHub Markdown: ranking of several candidates, then verdict, axes and findings of each."""
    ranking = rank(report.candidates, report.control)
    return _joined(_report(report, ranking))


def _joined(parts: Iterable[str]) -> str:
    return "\n\n".join(part for part in parts if part) + "\n"


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[int] = ()) -> str:
    """A pipe table; `right` are the numbers of the columns aligned to the right."""
    rule = ["---:" if i in right else "---" for i in range(len(headers))]
    lines: list[list[str]] = [list(headers), rule, *([safe(cell) for cell in cells] for cells in rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in lines)


def _report(report: Report, ranking: Ranking) -> Iterator[str]:
    if not ranking.rows:
        yield "**No candidate was measured.**"
    if len(ranking.rows) > 1:
        theirs = report.reference.effective.bytes_per_token
        yield from _ranking(ranking, {row.candidate.kv: theirs for row in ranking.rows})
    for row in ranking.rows:
        yield from _candidate(row.candidate, report)
    if report.control is not None:
        yield f"**{safe(control_title(report.control))}**: {safe(control_summary(report.control))}"
        yield table(COLUMNS, control_rows(report), right=(1, 2, 3))
        yield safe(control_note(report))
    if report.findings:
        yield _bullets("Findings", report.findings)
    rows = table(("", ""), provenance_rows(report))
    yield f"<details><summary>Provenance</summary>\n\n{rows}\n\n</details>"


def _ranking(ranking: Ranking, sizes: dict[str, float]) -> Iterator[str]:
    from refract.report.text_tables import ranked_cells

    rows = [ranked_cells(row, sizes.get(row.candidate.kv, 0.0)) for row in ranking.rows]
    yield table(("candidate", "rank", "score", "band", "KV size"), rows)
    if ranking.name:
        yield safe(ranking_note(ranking))


def _candidate(candidate: CandidateResult, report: Report) -> Iterator[str]:
    head, *rest = verdict(candidate, report.reference.effective)
    yield "  ".join((f"**{safe(head)}**", *map(safe, rest)))
    yield safe(halving_words(candidate))
    rows = []
    for axis in candidate.axes:
        score = axis.score
        shown = "–" if score is None else f"{score.value:.1f} {interval(score)}"
        measured = "" if score is None else counted(score.n, score.clusters, axis.unit)
        key = "; ".join(f"{name} {value}" for name, value in key_statistics(axis)[:3])
        rows.append((axis.axis, shown, STATUS_WORDS[axis.status], axis.reason or measured, key))
    if rows:
        yield table(("axis", "score", "status", "measured", "key statistics"), rows)
    yield _bullets("Findings", candidate.findings)
    yield _bullets("Warnings", [f"{a.axis}: {t}" for a in candidate.axes for t in a.warnings])


def _bullets(title: str, sentences: Sequence[str]) -> str:
    return f"**{title}**\n\n" + "\n".join(f"- {safe(text)}" for text in sentences) if sentences else ""


def comparison_markdown(comparison: Comparison) -> str:
    """The comparison as GitHub Markdown: a ranking for each group, then what differs."""
    return _joined(_comparison(comparison))


def _comparison(comparison: Comparison) -> Iterator[str]:
    if len(comparison.groups) > 1:
        yield f"**{len(comparison.groups)} groups that must not be ranked against each other**"
    for group in comparison.groups:
        yield f"### {safe(group.model)}, {safe(', '.join(group.engines))}"
        yield f"methodology {safe(group.methodology)}"
        yield from _ranking(group.ranking, dict(group.sizes))
        if group.against:
            yield table(("candidate", "points behind the first", "needles: p"), map(against_cells, group.against))
    yield _differing(comparison.differing)
    if comparison.legacy:
        yield "**Reports of refract-llm, another methodology**"
        yield table(LEGACY_COLUMNS, map(legacy_cells, comparison.legacy))
        yield safe(LISTED)


def _differing(differing: Sequence[Differing]) -> str:
    rows = [(d.what, value, some(names)) for d in differing for value, names in d.values]
    return f"**What differs**\n\n{table(('', 'value', 'reports'), rows)}" if rows else ""


def changes_markdown(changes: Changes) -> str:
    """What changed between two reports, as GitHub Markdown, the number of regressions first."""
    rows = [(change.kv, *change_cells(change)) for change in changes.rows]
    headers = ("candidate", "score of", "old", "new", "new − old", "verdict")
    found = table(headers, rows, right=(2, 3))
    return _joined(
        (f"**{changes_verdict(changes)}**", found, safe(changes_note(changes)), _differing(changes.differing))
    )
