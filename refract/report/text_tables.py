"""The tables of the text report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from refract.report.ranking import Ranked, Ranking, axis_of, ranking_note
from refract.report.words import (
    STATUS_WORDS,
    counted,
    interval,
    label_of,
    size_ratio,
    statistic,
)
from refract.results import AxisResult, CandidateResult, Estimate
from refract.work import EffectiveKV

if TYPE_CHECKING:
    from rich.console import RenderableType

    from refract.report.pen import Pen

CANDIDATE_CELLS = 22
BAR_CELLS = (8, 30)  # fewest and most
AXIS_CELLS = 14  # the first column's claim
MOST_UNKNOWN = 6  # statistics shown of an axis this file knows nothing about


def table(pen: Pen, columns: Sequence[str], rows: Sequence[Sequence[Text]], *, keep: int = 0) -> Table:
    """Columns without lines. Headers begin with "<" or ">" for the side, and end with "!" if cells must not be broken.

    A first column of at most `keep` cells (less in narrow reports) is not broken either.
    """
    out = Table(
        box=None,
        padding=(0, 2, 0, 0),
        pad_edge=False,
        show_header=any(c.strip("<>!") for c in columns),
        header_style="",
    )
    for column in columns:
        header, side = pen.text(column[1:].removesuffix("!"), "dim"), "right" if column[0] == ">" else "left"
        out.add_column(header, justify=side, overflow="fold", no_wrap=column.endswith("!"))  # type: ignore[arg-type]
    room = keep if pen.width >= 80 else keep // 2 + 3
    out.columns[0].no_wrap = max((row[0].cell_len for row in rows), default=0) <= room
    for row in rows:
        out.add_row(*row)
    return out


def ranking_table(ranking: Ranking, reference: EffectiveKV, pen: Pen) -> Iterator[RenderableType]:
    """Candidates best first, with shared ranks and the Pareto mark, and a line that explains both."""
    yield ranking_rows(ranking, {row.candidate.kv: reference.bytes_per_token for row in ranking.rows}, pen)
    if ranking.name:
        yield pen.text(ranking_note(ranking), "dim")


def ranking_rows(ranking: Ranking, sizes: Mapping[str, float], pen: Pen) -> Table:
    """The ranking's table; `sizes` gives the bytes per token of each candidate's reference."""
    columns = ("<candidate", "<rank!", "<score!", "<band", "<KV size")
    rows = [ranked_cells(row, sizes.get(row.candidate.kv, 0.0)) for row in ranking.rows]
    return table(pen, columns, [[pen.text(cell) for cell in row] for row in rows], keep=CANDIDATE_CELLS)


def ranked_cells(row: Ranked, reference_bytes: float) -> tuple[str, str, str, str, str]:
    """Candidate, rank, score, bands and size as words."""
    place = "–" if row.rank is None else f"{row.rank}{'=' if row.tied else ''}{' *' if row.pareto else ''}"
    score = "–" if row.score is None else f"{row.score.value:5.1f} {interval(row.score)}"
    size = size_ratio(row.candidate.effective.bytes_per_token, reference_bytes) or "not known"
    band = "/".join(row.bands) or ("no score" if row.score is None else "")
    return row.candidate.kv, place, score, band, size


def axis_table(candidate: CandidateResult, beside: tuple[str, CandidateResult] | None, pen: Pen) -> Table:
    """One row for each axis: score and interval, both drawn, status, what was measured, and the score `beside` it.

    `beside` is a result with its column's name; narrow reports leave it out.
    """
    narrow = pen.width < 80
    named, other = (None, None) if beside is None or narrow else beside
    rows = [_axis_cells(axis, other, narrow=narrow) for axis in candidate.axes]
    headers = ["<axis", "<score!", "<status", "<n/clusters" if narrow else "<measured"]
    headers += [] if named is None else [f">{named}!"]
    shown = [[header.strip("<>!") for header in headers], *rows]
    taken = sum(2 + max(pen.text(row[i]).cell_len for row in shown) for i in range(len(headers)))
    cells = min(BAR_CELLS[1], max(BAR_CELLS[0], pen.width - taken))
    headers.insert(2, f"<0{'100':>{cells - 1}}!")
    drawn = []
    for axis, row in zip(candidate.axes, rows, strict=True):
        texts = [pen.text(cell) for cell in row]
        drawn.append([*texts[:2], pen.bar(axis.score, cells), *texts[2:]])
    return table(pen, headers, drawn, keep=AXIS_CELLS)


def _axis_cells(axis: AxisResult, floor: CandidateResult | None, *, narrow: bool) -> list[str]:
    score = axis.score
    cells = [
        axis.axis,
        "    –" if score is None else f"{score.value:5.1f} {interval(score)}",
        STATUS_WORDS[axis.status],
        ""
        if score is None
        else f"{score.n:,}/{score.clusters:,}"
        if narrow
        else counted(score.n, score.clusters, axis.unit),
    ]
    if floor is not None:
        same = axis_of(floor, axis.axis)
        cells.append("–" if same is None or same.score is None else f"{same.score.value:.1f}")
    return cells


def _measured(score: Estimate, unit: str, *, narrow: bool) -> str:
    return f"{score.n:,}/{score.clusters:,}" if narrow else counted(score.n, score.clusters, unit)


def statistics_table(candidate: CandidateResult, pen: Pen) -> Table:
    """The key statistics of every axis, its name once."""
    rows: list[list[Text]] = []
    for axis in candidate.axes:
        for i, (name, value) in enumerate(key_statistics(axis)):
            rows.append([pen.text(axis.axis if i == 0 else "", "bold"), pen.text(name), pen.text(value)])
    return table(pen, ("<", "<", "<!"), rows, keep=AXIS_CELLS if rows else 0)


def key_statistics(axis: AxisResult) -> list[tuple[str, str]]:
    """(label, value) of the statistics that belong in a short report; of an unknown axis, the first few."""
    labels = {name: label_of(name) for name in axis.statistics}
    chosen = [name for name in labels if labels[name].key] or list(labels)[:MOST_UNKNOWN]
    return [(labels[name].text, statistic(axis.statistics[name], labels[name].kind)) for name in chosen]


def pairs_table(pairs: Iterable[tuple[str, str]], pen: Pen) -> Table:
    """Labels and values side by side, the values with a hanging indent."""
    return table(pen, ("<!", "<"), [[pen.text(f"  {name}", "dim"), pen.text(value)] for name, value in pairs])


def bullets(sentences: Iterable[str], pen: Pen) -> Table:
    """A list, each item with a hanging indent."""
    out = Table.grid(padding=(0, 1, 0, 0))
    for sentence in sentences:
        out.add_row(pen.text("  -"), pen.text(sentence))
    return out
