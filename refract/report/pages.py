"""What the page shows of each candidate, as values the template only has to lay out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from refract.report.charts import (
    Spot,
    depth_chart,
    position_chart,
    score_bar,
    size_chart,
    survival_chart,
    tail_chart,
)
from refract.report.grids import Grid, Heatmap, cell, heatmap, sample_grid, series_grids
from refract.report.noise import COLUMNS, control_note, control_rows, control_summary, control_title
from refract.report.plain import line
from refract.report.prompts import PromptView
from refract.report.ranking import Ranking, axis_of, pareto
from refract.report.words import (
    AXIS_WORDS,
    STATUS_WORDS,
    band_words,
    bands,
    counted,
    effective_words,
    halving_words,
    interval,
    label_of,
    size_words,
    statistic,
    verdict,
)
from refract.results import AxisResult, CandidateResult, Estimate, Json, Report

SYMBOLS = {"EXCELLENT": "✓", "PASS": "✓", "DEGRADED": "△", "FAIL": "✕", "": "–"}
STATUS_SYMBOLS = {"ok": "●", "low-confidence": "◐", "not-exercised": "○", "failed": "✕", "not-run": "–"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisView:
    """One axis: its row in the summary and everything below it."""

    anchor: str
    name: str
    about: str
    score: str
    interval: str
    bar: Markup
    status: str
    symbol: str
    reason: str
    measured: str
    floor: str
    control: str
    protocol: str
    statistics: tuple[tuple[str, str], ...]
    charts: tuple[tuple[str, Markup], ...]
    heatmap: Heatmap | None
    grids: tuple[Grid, ...]
    samples: Grid | None
    notes: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlView:
    """The control's section: a table of all configurations, and what to make of it."""

    title: str
    summary: str
    note: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateView:
    """One candidate's section of the page."""

    anchor: str
    kv: str
    band: str
    tone: str
    symbol: str
    score: str
    interval: str
    name: str
    reason: str
    size: str
    allocated: str
    title: str
    chances: tuple[tuple[str, str], ...]
    halving: str
    axes: tuple[AxisView, ...]
    findings: tuple[str, ...]
    warnings: tuple[str, ...]
    prompts: tuple[tuple[str, PromptView], ...]
    categories: tuple[str, ...]
    flags: tuple[str, ...]
    left_out: str


def candidate_view(
    candidate: CandidateResult, index: int, report: Report, prompts: Sequence[PromptView]
) -> CandidateView:
    """The view of the candidate with that number, counted from 1, with these of its prompts."""
    anchor, composite = f"c{index}", candidate.composite
    asked = axis_of(candidate, "trajectory")
    left = len(asked.samples) - len(prompts) if asked is not None else 0
    score = composite.score
    likely = bands(composite)
    return CandidateView(
        anchor=anchor,
        kv=line(candidate.kv, 200),
        band=band_words(composite),
        tone=tone(likely),
        symbol=SYMBOLS[composite.band or ""],
        score="" if score is None else f"{score.value:.1f}",
        interval="" if score is None else interval(score),
        name=line(composite.name),
        reason=line(composite.reason or ""),
        size="" if (size := size_words(candidate.effective, report.reference.effective)) is None else f"{size} KV",
        allocated=line(f"Allocated: {effective_words(candidate.effective)}."),
        title=line(", ".join(verdict(candidate, report.reference.effective)), 300),
        chances=tuple((band, f"{p:.0%}") for band, p in composite.band_probability.items() if p >= 0.005),
        halving=halving_words(candidate),
        axes=tuple(
            axis_view(axis, name, report)
            for axis, name in zip(
                candidate.axes, anchors(f"{anchor}-axis-", [a.axis for a in candidate.axes]), strict=True
            )
        ),
        findings=tuple(map(line, candidate.findings)),
        warnings=tuple(f"{line(a.axis, 100)}: {line(text)}" for a in candidate.axes for text in a.warnings),
        prompts=tuple(zip(anchors(f"{anchor}-", [p.id for p in prompts]), prompts, strict=True)),
        categories=tuple(sorted({p.category for p in prompts if p.category})),
        flags=tuple(sorted({flag for p in prompts for flag in p.flags})),
        left_out=f"{left:,} more prompts are in the JSON report only." if left > 0 else "",
    )


def control_view(report: Report) -> ControlView | None:
    """The view of the control, if the report has one."""
    if report.control is None:
        return None
    return ControlView(
        title=line(control_title(report.control)),
        summary=line(control_summary(report.control)),
        note=line(control_note(report)),
        columns=COLUMNS,
        rows=tuple(tuple(map(line, row)) for row in control_rows(report)),
    )


def tone(likely: Sequence[str]) -> str:
    """The colour class of a verdict: good, fair, bad, or none without a score."""
    if not likely:
        return "none"
    if likely[-1] in ("EXCELLENT", "PASS"):
        return "good"
    return "bad" if list(likely) == ["FAIL"] else "fair"


def anchors(prefix: str, names: Sequence[str]) -> list[str]:
    """A different HTML id for every name, made of it where that is possible."""
    seen: dict[str, int] = {}
    found = []
    for name in names:
        slug = prefix + (re.sub(r"[^A-Za-z0-9_.-]+", "-", name)[:48] or "x")
        seen[slug] = seen.get(slug, 0) + 1
        found.append(slug if seen[slug] == 1 else f"{slug}~{seen[slug]}")
    return found


def axis_view(axis: AxisResult, anchor: str, report: Report) -> AxisView:
    """The view of one axis, which the page knows as `anchor`."""
    beside, changed = (axis_of(side, axis.axis) if side else None for side in (report.floor, report.control))
    floor_score, control_score = (side.score if side else None for side in (beside, changed))
    score = axis.score
    return AxisView(
        anchor=anchor,
        name=line(axis.axis, 100),
        about=AXIS_WORDS.get(axis.axis, ""),
        score="–" if score is None else f"{score.value:.1f}",
        interval="" if score is None else interval(score),
        bar=score_bar(axis, floor_score),
        status=STATUS_WORDS[axis.status],
        symbol=STATUS_SYMBOLS[axis.status],
        reason=line(axis.reason or ""),
        measured="" if score is None else counted(score.n, score.clusters, axis.unit),
        floor="" if floor_score is None else f"{floor_score.value:.1f}",
        control="" if control_score is None else f"{control_score.value:.1f}",
        protocol=line(", ".join(filter(None, (axis.protocol, axis.estimator, score.method if score else "")))),
        statistics=tuple(_statistics(axis)),
        charts=tuple(_charts(axis, beside)),
        heatmap=heatmap(axis),
        grids=series_grids(axis),
        samples=None if axis.axis == "trajectory" else sample_grid(axis),
        notes=tuple(("warning", line(text)) for text in axis.warnings),
    )


def _statistics(axis: AxisResult) -> Iterator[tuple[str, str]]:
    for name, value in axis.statistics.items():
        label = label_of(name)
        yield line(label.text), statistic(value, label.kind)


def _charts(axis: AxisResult, floor: AxisResult | None) -> Iterator[tuple[str, Markup]]:
    drawn = (
        ("First divergence, Kaplan–Meier, with its 95 % band.", survival_chart(axis, floor), "survival"),
        ("How often the divergence at one position is large.", tail_chart(axis, floor), "kl_tail"),
        ("Divergence by depth, with 95 % intervals.", depth_chart(axis, floor), "depths"),
        ("Divergence along the reference's own answers.", position_chart(axis), ""),
    )
    for caption, chart, series in drawn:
        if chart:
            yield caption + _floor_words(chart, series, floor), chart


def _floor_words(chart: Markup, series: str, floor: AxisResult | None) -> str:
    if "floor-line" in chart:
        return " The dashed line is the floor: the reference against itself."
    if floor is not None and floor.series.get(series):
        return " The floor lies below everything drawn here."
    return ""


def settings_rows(report: Report) -> Iterator[tuple[str, str]]:
    """The model's details and every axis' parameters, as (label, value)."""
    for name, value in (("model details", report.model.details), *_parameters(report)):
        if value:
            yield line(name, 100), cell(dict(value), limit=1000)


def _parameters(report: Report) -> Iterator[tuple[str, Mapping[str, Json]]]:
    plain = {}
    for axis, value in report.methodology.parameters.items():
        inner = value.get("parameters") if isinstance(value, Mapping) else None
        if isinstance(inner, Mapping):
            yield f"settings, {axis}", inner
        elif isinstance(value, Mapping):
            yield f"settings, {axis}", value
        else:
            plain[axis] = value
    yield "settings", plain


def tied_words(ranking: Ranking) -> str:
    """Which candidates share the first rank, empty where one is alone there."""
    first = [line(row.candidate.kv, 100) for row in ranking.rows if row.rank == 1]
    return f"{', '.join(first)} share the first rank: measured here, they cannot be told apart" if first[1:] else ""


def comparison_chart(ranking: Ranking, reference_bytes: float) -> Markup:
    """Mean KL against size for the candidates that have both; empty for fewer than two."""
    found: list[tuple[str, float, Estimate]] = []
    for row in ranking.rows:
        kld = axis_of(row.candidate, "kld")
        mean = kld.statistics.get("mean_kl_nats") if kld is not None and kld.status == "ok" else None
        if isinstance(mean, Estimate):
            found.append((line(row.candidate.kv, 200), row.candidate.effective.bytes_per_token, mean))
    front = pareto([(size, -mean.value) for _, size, mean in found])
    spots = [
        Spot(name=name, bytes_per_token=size, kl=mean, front=marked)
        for (name, size, mean), marked in zip(found, front, strict=True)
    ]
    return size_chart(spots, reference_bytes)
