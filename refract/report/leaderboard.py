"""A leaderboard of many reports as Markdown: a table for each model and methodology, what is uncertain flagged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from refract.errors import ReportError
from refract.report.compare import Group, comparable, compare, unique
from refract.report.compare_text import LEGACY_COLUMNS, legacy_cells
from refract.report.legacy import LISTED, LegacyReport
from refract.report.markdown import safe, table
from refract.report.ranking import Ranked, axis_of, ranking_note
from refract.report.words import counted, interval, size_ratio, statistic
from refract.results import CandidateResult, Report

COLUMNS = ("rank", "KV configuration", "score", "95 % interval", "band", "mean KL (nats)", "KV size", "flags", "report")
DISCLAIMERS = (
    "A score says how far a compressed KV cache moves a model away from itself under a 16-bit cache. It is no statement"
    " about the quality of a model.",
    "Only rows of one table compare: other models, engines, prompts, texts and lengths give other numbers.",
    "Equal ranks mean that the paired 95 % interval of the difference holds 0, not that two candidates are equal.",
    "Of several runs of one candidate the newest is shown.",
)
NARROW_POINTS = 10.0  # an interval wider than a whole band says little


def leaderboard(reports: Sequence[tuple[str, Report]], legacy: Sequence[LegacyReport] = ()) -> str:
    """The leaderboard as GitHub Markdown: disclaimers, then a table for each group of comparable reports.

    The newest result of every candidate of a group is ranked; reports of refract-llm are listed last, unranked. Equal
    reports give equal text.

    Raises: ReportError for no reports at all.
    """
    if not reports and not legacy:
        raise ReportError("there is nothing to show", hint="name a folder of files that refract score --json-out wrote")
    named = dict(zip(unique([name for name, _ in reports]), [report for _, report in reports], strict=True))
    newest = _newest(list(named.items()))
    groups = compare(newest).groups if newest else ()
    return "\n\n".join(filter(None, _parts(groups, legacy, named))) + "\n"


def _newest(reports: Sequence[tuple[str, Report]]) -> list[tuple[str, Report]]:
    """The reports, each with those candidates only that no later comparable report has too."""
    kept: dict[tuple[str, str, str, str], tuple[str, str]] = {}
    for name, report in sorted(reports, key=lambda named: (named[1].created, named[0])):
        for candidate in report.candidates:
            kept[_key(report, candidate)] = (report.created, name)
    found = []
    for name, report in reports:
        own = tuple(c for c in report.candidates if kept[_key(report, c)] == (report.created, name))
        if own:
            found.append((name, replace(report, candidates=own)))
    return found


def _key(report: Report, candidate: CandidateResult) -> tuple[str, str, str, str]:
    return *comparable(report), candidate.kv


def _parts(groups: Sequence[Group], legacy: Sequence[LegacyReport], reports: dict[str, Report]) -> Iterator[str]:
    yield "# Leaderboard"
    yield "\n".join(f"- {text}" for text in DISCLAIMERS)
    if not groups:
        yield "No report has a candidate."
    for group in sorted(groups, key=lambda g: (g.model.lower(), g.methodology)):
        yield from _group(group, reports)
    if legacy:
        yield "## Reports of refract-llm"
        yield safe(LISTED)
        yield table(LEGACY_COLUMNS, map(legacy_cells, legacy))


def _group(group: Group, reports: dict[str, Report]) -> Iterator[str]:
    first = reports[group.reports[0]]
    method = first.methodology
    yield f"## {safe(group.model)}"
    yield safe(
        f"{', '.join(group.engines)}; reference {first.reference.kv}; prompts {method.prompts or 'none'}; corpus"
        f" {method.corpus or 'none'}; {method.n_predict} tokens; methodology {group.methodology}"
    )
    yield table(COLUMNS, [_row(row, group) for row in group.ranking.rows], right=(2,))
    if group.ranking.name:
        yield safe(ranking_note(group.ranking))


def _row(row: Ranked, group: Group) -> tuple[str, ...]:
    candidate, (report, kv) = row.candidate, _named(row.candidate.kv, group)
    kld = axis_of(candidate, "kld")
    mean = None if kld is None or kld.status != "ok" else kld.statistics.get("mean_kl_nats")
    size = size_ratio(candidate.effective.bytes_per_token, group.sizes.get(candidate.kv, 0.0))
    return (
        "–" if row.rank is None else f"{row.rank}{'=' if row.tied else ''}{' *' if row.pareto else ''}",
        kv,
        "–" if row.score is None else f"{row.score.value:.1f}",
        "–" if row.score is None else interval(row.score),
        "/".join(row.bands) or ("no score" if row.score is None else "–"),
        "–" if mean is None else statistic(mean, "nats"),
        size or "not known",
        "; ".join(_flags(row)) or "–",
        report,
    )


def _named(label: str, group: Group) -> tuple[str, str]:
    """The report and the KV configuration of a candidate in a group."""
    if len(group.reports) == 1:
        return group.reports[0], label
    report = next(name for name in sorted(group.reports, key=len, reverse=True) if label.startswith(f"{name}: "))
    return report, label.removeprefix(f"{report}: ")


def _flags(row: Ranked) -> Iterator[str]:
    """What makes a row less than it looks."""
    if row.noise:
        yield "within kernel noise"
    if row.score is None:
        yield row.candidate.composite.reason or "no score"
    elif row.score.high - row.score.low > 2.0 * NARROW_POINTS:
        yield f"low confidence: ± {(row.score.high - row.score.low) / 2.0:.0f} points"
    for axis in row.candidate.axes:
        if axis.status == "low-confidence":
            measured = "" if axis.score is None else f" ({counted(axis.score.n, axis.score.clusters, axis.unit)})"
            yield f"{axis.axis}: low confidence{measured}"
        elif axis.status in ("failed", "not-exercised"):
            yield f"{axis.axis}: {axis.status.replace('-', ' ')}"
    if row.candidate.findings:
        count = len(row.candidate.findings)
        yield f"{count} finding{'' if count == 1 else 's'}"
