"""What a report's control says, as rows and sentences for every form of the report."""

from __future__ import annotations

from refract.report.words import significant, statistic
from refract.results import CandidateResult, Report, Statistic, plain_number, within_noise

COLUMNS = ("configuration", "KL against reference", "KL against itself", "same top token")


def control_title(control: CandidateResult) -> str:
    """What was done: the reference and under what."""
    change = "" if control.control is None else control.control.change
    return f"Control, {control.kv} under {change or 'a harmless change'}, against itself"


def control_summary(control: CandidateResult) -> str:
    """The control's scores, in a line."""
    scored = [f"{axis.axis} {axis.score.value:.2f}" for axis in control.axes if axis.score is not None]
    missing = [f"{axis.axis}: no score: {axis.reason}" for axis in control.axes if axis.score is None]
    return "; ".join((*scored, *missing)) or "no axis was measured"


def control_rows(report: Report) -> list[tuple[str, str, str, str]]:
    """`COLUMNS` for the reference and every candidate: its loss, and its kernels' noise. Empty without a control."""
    if report.control is None:
        return []
    return [_row(report.control, "–"), *(_row(candidate, _loss(candidate)) for candidate in report.candidates)]


def control_note(report: Report) -> str:
    """How to read the rows; which candidates cannot be told from noise comes first."""
    lost = [candidate.kv for candidate in report.candidates if within_noise(candidate, report.control)]
    said = f"Not distinguishable from kernel noise: {', '.join(lost)}. " if lost else ""
    return f"{said}Against the reference: what the format loses. Against itself: what single tokens owe to kernels."


def _row(result: CandidateResult, loss: str) -> tuple[str, str, str, str]:
    noise = result.control
    if noise is None:
        return result.kv, loss, "–", "–"
    return result.kv, loss, _nats(noise.mean_kl_nats), statistic(plain_number(noise.top1_agreement), "share")


def _loss(candidate: CandidateResult) -> str:
    mean = candidate.mean_kl_nats
    return "–" if mean is None else f"{significant(mean)} nats"


def _nats(value: Statistic) -> str:
    number = plain_number(value)
    return "not known" if number is None else f"{significant(number)} nats"
