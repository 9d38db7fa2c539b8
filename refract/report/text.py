"""Reports as plain text for terminals, pipes and logs."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO
from typing import TYPE_CHECKING

from refract.report.noise import COLUMNS, control_note, control_rows, control_summary, control_title
from refract.report.ranking import Ranked, axis_of, rank
from refract.report.words import band_words, effective_words, halving_words, verdict
from refract.results import CandidateResult, Provenance, Report

if TYPE_CHECKING:
    from rich.console import RenderableType

    from refract.report.pen import Pen

NARROWEST = 60


def to_text(report: Report, *, width: int = 80, color: bool = False, ascii: bool = False) -> str:
    """The report as lines of at most `width` cells, verdict first, ending in a newline.

    With `color` it holds ANSI colours, which repeat what words say; with `ascii` nothing but ASCII. Text of models and
    users never brings control characters of its own. Widths below 60 are treated as 60.
    """
    from refract.report.pen import Pen

    pen = Pen(ascii=ascii, width=max(NARROWEST, width))
    return printed(_blocks(report, pen), pen.width, color=color)


def printed(blocks: Iterator[RenderableType], width: int, *, color: bool) -> str:
    """The renderables one under the other, without trailing spaces."""
    from rich.console import Console

    out = StringIO()
    console = Console(
        file=out,
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
        no_color=not color,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
        _environ={},
    )
    for block in blocks:
        console.print(block)
    return "\n".join(line.rstrip() for line in out.getvalue().rstrip().split("\n")) + "\n"


def _blocks(report: Report, pen: Pen) -> Iterator[RenderableType]:
    from refract.report.text_tables import ranking_table

    ranking = rank(report.candidates, report.control)
    if not ranking.rows:
        yield pen.text("no candidate was measured", "bold")
    if len(ranking.rows) > 1:
        yield from ranking_table(ranking, report.reference.effective, pen)
        yield ""
    for row in ranking.rows:
        yield from _candidate(row, report, pen)
        yield ""
    if report.floor is not None:
        yield from _floor(report.floor, pen)
        yield ""
    if report.control is not None:
        yield from _control(report, report.control, pen)
        yield ""
    if report.findings:
        yield from _sentences("Findings", report.findings, pen)
        yield ""
    yield from _provenance(report, pen)


def _candidate(row: Ranked, report: Report, pen: Pen) -> Iterator[RenderableType]:
    from refract.report.pen import band_style
    from refract.report.text_tables import axis_table, statistics_table

    candidate = row.candidate
    yield pen.flow(verdict(candidate, report.reference.effective), band_style(candidate.composite))
    if halving := halving_words(candidate):
        yield pen.text(halving, "dim")
    if not candidate.axes:
        yield pen.text("no axis was measured")
        return
    yield ""
    yield axis_table(candidate, _beside(report), pen)
    for axis in candidate.axes:
        if axis.reason:
            yield pen.text(f"{axis.axis}: {'no score: ' if axis.score is None else ''}{axis.reason}")
    table = statistics_table(candidate, pen)
    if table.row_count:
        yield ""
        yield table
    warnings = tuple(f"{a.axis}: {text}" for a in candidate.axes for text in a.warnings)
    for title, sentences in (("Findings", candidate.findings), ("Warnings", warnings)):
        if sentences:
            yield ""
            yield from _sentences(title, sentences, pen)


def _sentences(title: str, sentences: tuple[str, ...], pen: Pen) -> Iterator[RenderableType]:
    from refract.report.text_tables import bullets

    yield pen.text(title, "bold")
    yield bullets(sentences, pen)


def _floor(floor: CandidateResult, pen: Pen) -> Iterator[RenderableType]:
    composite = floor.composite
    score = "no score" if composite.score is None else f"{composite.score.value:.1f}"
    yield pen.flow((f"Floor, {floor.kv} against itself: {band_words(composite)}", score), "bold")
    kld = axis_of(floor, "kld")
    for axis in floor.axes:
        if axis.score is None:
            yield pen.text(f"  {axis.axis}: no score: {axis.reason}")
    if kld is not None and kld.score is not None and kld.score.value < 100.0:
        yield pen.text(f"  kld {kld.score.value:.2f}: what the engine's own noise costs", "dim")


def _beside(report: Report) -> tuple[str, CandidateResult] | None:
    """What stands beside every score, and its name: the control, or else the floor."""
    if report.control is not None:
        return "control", report.control
    return None if report.floor is None else ("floor", report.floor)


def _control(report: Report, control: CandidateResult, pen: Pen) -> Iterator[RenderableType]:
    from refract.report.text_tables import table

    yield pen.text(control_title(control), "bold")
    yield pen.text(f"  {control_summary(control)}", "dim")
    columns = [f"{'<' if i == 0 else '>'}{name}" for i, name in enumerate(COLUMNS)]
    yield table(pen, columns, [[pen.text(cell) for cell in row] for row in control_rows(report)])
    yield pen.text(control_note(report), "dim")


def _provenance(report: Report, pen: Pen) -> Iterator[RenderableType]:
    from refract.report.text_tables import pairs_table

    yield pen.text("Provenance", "bold")
    yield pairs_table(list(provenance_rows(report)), pen)


def provenance_rows(report: Report) -> Iterator[tuple[str, str]]:
    """What was run, on what, with what, as (label, value)."""
    model, method, source = report.model, report.methodology, report.provenance
    yield "model", f"{model.name} ({model.fingerprint})"
    yield "engine", model.engine
    yield "reference", f"{report.reference.kv} → {effective_words(report.reference.effective)}"
    for candidate in report.candidates:
        yield "candidate", f"{candidate.kv} → {effective_words(candidate.effective)}"
        yield from (("", note) for note in candidate.effective.notes)
    yield from _protocols(report)
    yield "prompts", method.prompts or "none"
    yield "corpus", method.corpus or "none"
    yield "predicted", f"at most {method.n_predict:,} tokens per prompt"
    yield "methodology", method.id
    yield "work", _work(source)
    yield "machine", ", ".join(f"{key} {value}" for key, value in source.machine.items()) or "not recorded"
    yield "packages", ", ".join(f"{key} {value}" for key, value in source.packages.items()) or "none recorded"
    yield "refract", f"{source.refract}, {report.created}"
    yield "command", source.command


def _protocols(report: Report) -> Iterator[tuple[str, str]]:
    seen: dict[tuple[str, str], None] = {}
    for axis in (axis for candidate in report.candidates for axis in candidate.axes):
        words = ", ".join(filter(None, (axis.protocol, axis.estimator)))
        if words:
            seen[(axis.axis, words)] = None
    for axis_name, words in seen:
        yield "protocol", f"{axis_name}: {words}"


def _work(source: Provenance) -> str:
    answers = ", ".join(f"{count:,} answers {name}" for name, count in source.answers.items())
    seconds = ", ".join(f"{name} {value:,.1f} s" for name, value in source.seconds.items() if value >= 0.05)
    return ", ".join(filter(None, (f"{source.loads} loads", answers, seconds)))
