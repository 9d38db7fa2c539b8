"""Tables of a report's page, built from statistics, series and samples without knowing every name in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from refract.report.plain import clipped, line
from refract.report.words import Kind, figure, label_of, significant
from refract.results import AxisResult, Json, Sample

MOST_ROWS = 60
CELL_CHARS = 160
DRAWN = frozenset({"survival", "kl_tail", "trajectory_kl"})  # series that have a chart
TITLES: Mapping[str, str] = {
    "categories": "By category",
    "depths": "By depth of the cache",
    "margins": "By the reference's margin",
    "trajectories": "Along every answer",
    "perturbations": "By perturbation",
    "cells": "By length and position",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A table whose first column names its rows; `figures` tells columns of numbers, `note` what was left out."""

    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    figures: tuple[bool, ...]
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heat:
    """One retrieval cell: its words and a step from 0 (none) to 4 (all), None where the reference found nothing."""

    words: str
    step: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Heatmap:
    """Retrieval by position (rows) and length (columns)."""

    lengths: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Heat, ...]], ...]


def cell(value: Json, kind: Kind = "plain", limit: int = CELL_CHARS) -> str:
    """Any JSON value in a few words, at most `limit` characters of it."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return figure(value, kind)
    if isinstance(value, str):
        return line(value, limit)
    if isinstance(value, list):
        return clipped(", ".join(cell(item, kind) for item in value[:20]), limit) or "–"
    if value.keys() == {"value", "low", "high"}:
        middle, low, high = (cell(value[key], kind) for key in ("value", "low", "high"))
        return middle if "–" in (low, high) else f"{middle} [{low.removesuffix(' %')}, {high.removesuffix(' %')}]"
    words = ", ".join(f"{line(key, CELL_CHARS)}: {cell(item, kind)}" for key, item in value.items())
    return clipped(words, limit) or "–"


def kind_of(name: str) -> Kind:
    """How numbers under this name are shown."""
    return "score" if name == "score" else label_of(name).kind


def series_grids(axis: AxisResult) -> tuple[Grid, ...]:
    """A table for every series that is a list of objects and has no chart."""
    found = []
    for name, value in axis.series.items():
        rows = [row for row in value if isinstance(row, Mapping)] if isinstance(value, list) else []
        if rows and name not in DRAWN:
            found.append(_grid(TITLES.get(name, label_of(name).text), rows))
    return tuple(found)


def _grid(title: str, rows: Sequence[Mapping[str, Json]]) -> Grid:
    names = list(dict.fromkeys(name for row in rows for name in row))
    shown = rows[:MOST_ROWS]
    texts = {name for name in names for row in shown if isinstance(row.get(name), str | list)}
    return Grid(
        title=line(title, CELL_CHARS),
        headers=tuple(line(label_of(name).text, CELL_CHARS) for name in names),
        rows=tuple(tuple(cell(row.get(name), kind_of(name)) for name in names) for row in shown),
        figures=tuple(name not in texts for name in names),
        note="" if len(shown) == len(rows) else f"the first {len(shown)} of {len(rows):,} rows",
    )


def sample_grid(axis: AxisResult) -> Grid | None:
    """The samples that cost most, with what is known of each; None where there are none."""
    if not axis.samples:
        return None
    ranked = sorted(axis.samples, key=lambda s: _cost(axis, s), reverse=True)
    rows = [_sample_row(sample) for sample in ranked[:MOST_ROWS]]
    grid = _grid("Samples, worst first", rows)
    left = len(axis.samples) - len(rows)
    return replace(grid, note=f"{left:,} better ones not shown" if left else "")


def _cost(axis: AxisResult, sample: Sample) -> float:
    if sample.denominator == 0.0:
        return float("-inf")
    ratio = sample.numerator / sample.denominator
    return -ratio if axis.link == "100*r" else ratio if axis.link == "100*exp(-r)" else abs(ratio)


def _sample_row(sample: Sample) -> dict[str, Json]:
    ratio = None if sample.denominator == 0.0 else significant(sample.numerator / sample.denominator)
    return {"id": sample.id, "category": sample.category, "ratio": ratio, **sample.detail}


def heatmap(axis: AxisResult) -> Heatmap | None:
    """Needles kept by cell, from the axis' table of cells or else its samples; None where neither names cells."""
    cells = _counted_cells(axis.series.get("cells")) or _sampled_cells(axis.samples)
    if not cells:
        return None
    lengths = sorted({length for _, length in cells})
    positions = sorted({position for position, _ in cells})
    rows = tuple((f"{p:g}", tuple(_heat(*cells.get((p, length), (0.0, 0.0))) for length in lengths)) for p in positions)
    return Heatmap(lengths=tuple(f"{length:,.0f}" for length in lengths), rows=rows)


def _counted_cells(table: Json) -> dict[tuple[float, float], tuple[float, float]]:
    found = {}
    for row in table if isinstance(table, list) else ():
        if isinstance(row, Mapping):
            place, counts = _pair(row, "position", "length"), _pair(row, "candidate_hits", "informative")
            if place is not None and counts is not None:
                found[place] = counts
    return found


def _sampled_cells(samples: Iterable[Sample]) -> dict[tuple[float, float], tuple[float, float]]:
    found: dict[tuple[float, float], tuple[float, float]] = {}
    for sample in samples:
        place = _pair(sample.detail, "position", "length")
        if place is not None:
            hits, asked = found.get(place, (0.0, 0.0))
            found[place] = hits + sample.numerator, asked + sample.denominator
    return found


def _pair(row: Mapping[str, Json], first: str, second: str) -> tuple[float, float] | None:
    a, b = row.get(first), row.get(second)
    return (float(a), float(b)) if isinstance(a, int | float) and isinstance(b, int | float) else None


def _heat(found: float, asked: float) -> Heat:
    if asked <= 0.0:
        return Heat(words="not informative", step=None)
    return Heat(words=f"{found:g} of {asked:g}", step=round(4.0 * min(1.0, max(0.0, found / asked))))
