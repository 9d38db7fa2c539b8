"""A block for a model card: what KV-cache compression costs this model, in Markdown that a script can replace."""

from __future__ import annotations

from collections.abc import Iterator

from refract.report.markdown import safe, table
from refract.report.ranking import Ranked, axis_of, rank
from refract.report.words import interval, size_ratio, statistic
from refract.results import Report

BEGIN, END = "<!-- refract:begin -->", "<!-- refract:end -->"
COLUMNS = ("KV cache", "score", "95 % interval", "band", "mean KL (nats)", "size")


def to_model_card(report: Report) -> str:
    """A section of GitHub Markdown between two comments: a row for each candidate, then what was measured and how.

    Low-confidence and missing scores are marked as what they are. Same report, same bytes.
    """
    return "\n\n".join((BEGIN, *filter(None, _parts(report)), END)) + "\n"


def _parts(report: Report) -> Iterator[str]:
    ranking = rank(report.candidates, report.control)
    yield "## KV-cache compression"
    yield (
        "How far a compressed KV cache moves this model away from itself, as measured by REFRACT: 100 means that it"
        f" cannot be told from {safe(report.reference.kv)}."
    )
    yield table(COLUMNS, (_row(row, report) for row in ranking.rows)) if ranking.rows else "No candidate was measured."
    if ranking.name:
        yield safe(f"Scores are {ranking.name}, from 0 to 100.")
    notes = [f"{row.candidate.kv}: {_missing(row)}" for row in ranking.rows if row.score is None]
    notes += [
        f"{row.candidate.kv}: {axis.axis} is of low confidence, {axis.reason or 'few samples'}"
        for row in ranking.rows
        for axis in row.candidate.axes
        if axis.status == "low-confidence"
    ]
    yield "\n".join(f"- {safe(note)}" for note in notes)
    method = report.methodology
    made = (
        f"Model {report.model.name} ({report.model.fingerprint[:23]}…), {report.model.engine}, prompts"
        f" {method.prompts or 'none'}, corpus {method.corpus or 'none'}, methodology {method.id}, refract"
        f" {report.provenance.refract}, {report.created[:10]}. Only scores of the same methodology compare."
    )
    yield safe(made)


def _row(row: Ranked, report: Report) -> tuple[str, ...]:
    candidate = row.candidate
    kld = axis_of(candidate, "kld")
    mean = None if kld is None or kld.status != "ok" else kld.statistics.get("mean_kl_nats")
    size = size_ratio(candidate.effective.bytes_per_token, report.reference.effective.bytes_per_token)
    return (
        candidate.kv,
        "–" if row.score is None else f"{row.score.value:.1f}",
        "–" if row.score is None else interval(row.score),
        "/".join(row.bands) or ("no score" if row.score is None else "–"),
        "–" if mean is None else statistic(mean, "nats"),
        size or "not known",
    )


def _missing(row: Ranked) -> str:
    return row.candidate.composite.reason or "an axis of the ranking has no score"
