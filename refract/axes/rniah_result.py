"""The rniah axis' verdict: retention over the informative trials, and what the others say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from refract.axes.answers import names, reasons, too_many_missing
from refract.axes.base import Answers
from refract.axes.continuations import Paired, read_pairs
from refract.axes.degeneration import findings
from refract.axes.outcomes import Outcomes, read_outcomes
from refract.axes.retrieval import Trials
from refract.axes.rniah_tables import cell_table, family_table, nll_delta
from refract.engine import Tokenizer
from refract.results import AxisResult, Estimate, Link, Statistic, Status, Unit
from refract.stats import estimate
from refract.stats.paired import mcnemar_exact

LINK: Link = "100*r"
UNIT: Unit = "haystack"
ENOUGH = 6  # informative trials; with fewer no loss below 39 % could be ruled out
THINKING_SHARE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verdict:
    status: Status
    score: Estimate | None = None
    reason: str | None = None


def rniah_result(
    trials: Trials, reference: Answers, candidate: Answers, *, tokenizer: Tokenizer, graded: bool
) -> AxisResult:
    """100 · candidate hits / reference hits over the informative trials, with Wilson's interval."""
    paired = read_pairs([(t.id, t.ask, t.ask) for t in trials.asked], reference, candidate)
    outcomes = read_outcomes(trials.asked, paired, reference, candidate, tokenizer=tokenizer)
    verdict = _verdict(trials, paired, outcomes)
    return AxisResult(
        axis="rniah",
        status=verdict.status,
        score=verdict.score,
        reason=verdict.reason,
        link=LINK,
        unit=UNIT,
        protocol="decode",
        statistics=_statistics(outcomes, paired) if outcomes else {},
        series={"cells": cell_table(trials, outcomes), "families": family_table(outcomes)},
        samples=tuple(o.sample() for o in outcomes),
        warnings=_warnings(trials, paired, outcomes, graded=graded),
        findings=(*_losses(outcomes), *findings([o.pair for o in outcomes], what="retrieval answers")),
    )


def _verdict(trials: Trials, paired: Paired, outcomes: Sequence[Outcomes]) -> _Verdict:
    if not trials.asked:
        why = "; ".join(dict.fromkeys(reason for _, reason in trials.skipped))
        return _Verdict(status="not-run", reason=f"no cell could be asked: {why}")
    if too_many_missing(len(paired.failures), paired.total):
        why = reasons(paired.failures.values())
        return _Verdict(
            status="failed", reason=f"{len(paired.failures)} of {paired.total} trials could not be scored: {why}"
        )
    informative = sum(o.informative for o in outcomes)
    if informative < ENOUGH:
        return _Verdict(status="low-confidence", reason=_too_few(outcomes))
    hits = sum(o.reference == "hit" for o in outcomes)
    if hits - informative > THINKING_SHARE * hits:
        reason = (
            f"the candidate did not finish thinking in {hits - informative} of {hits} trials the reference retrieved"
        )
        return _Verdict(status="low-confidence", score=_score(outcomes), reason=reason)
    return _Verdict(status="ok", score=_score(outcomes))


def _too_few(outcomes: Sequence[Outcomes]) -> str:
    hits, informative = sum(o.reference == "hit" for o in outcomes), sum(o.informative for o in outcomes)
    text = f"the reference retrieved {hits} of {len(outcomes)} needles, {ENOUGH} are needed"
    if hits != informative:
        text += f"; the candidate did not finish thinking in {hits - informative} of these"
    unfinished = sum(o.reference == "thinking" for o in outcomes)
    return f"{text}; the reference did not finish thinking in {unfinished}" if unfinished else text


def _score(outcomes: Sequence[Outcomes]) -> Estimate:
    samples = [o.sample() for o in outcomes]
    columns = [s.numerator for s in samples], [s.denominator for s in samples], [s.cluster for s in samples]
    return estimate.score(LINK, *columns, proportion=True)


def _statistics(outcomes: Sequence[Outcomes], paired: Paired) -> dict[str, Statistic]:
    informative = sum(o.informative for o in outcomes)
    lost = sum(o.lost for o in outcomes)
    gained = sum(o.reference == "miss" and o.candidate == "hit" for o in outcomes)
    return {
        "retention": _share(_score(outcomes)) if informative else None,
        "trials": len(outcomes),
        "trials_failed": len(paired.failures),
        "informative": informative,
        "reference_hits": sum(o.reference == "hit" for o in outcomes),
        "candidate_hits": sum(o.retained for o in outcomes),
        "lost": lost,
        "gained": gained,
        "mcnemar_p": mcnemar_exact(lost, gained),
        "thinking_reference": sum(o.reference == "thinking" for o in outcomes),
        "thinking_candidate": sum(o.candidate == "thinking" for o in outcomes),
        "answer_nll_delta_nats": nll_delta(outcomes),
    }


def _share(score: Estimate) -> Estimate:
    return replace(score, value=score.value / 100.0, low=score.low / 100.0, high=score.high / 100.0)


def _warnings(trials: Trials, paired: Paired, outcomes: Sequence[Outcomes], *, graded: bool) -> tuple[str, ...]:
    found = _skipped_cells(trials) if trials.asked else []
    found += paired.warnings("trials")
    inexact = sum(len(t.ask.prompt) != t.cell.length for t in trials.asked)
    if inexact:
        found.append(f"{inexact} prompts are a little shorter than their cell: no cut of the text gives its length")
    for side in ("reference", "candidate"):
        unfinished = sum(getattr(o, side) == "thinking" for o in outcomes)
        if unfinished:
            found.append(f"the {side} spent its budget thinking in {unfinished} of {len(outcomes)} trials")
    ungraded = sum(not o.graded for o in outcomes)
    if graded and ungraded:
        found.append(f"{ungraded} of {len(outcomes)} right answers could not be graded on both sides")
    return tuple(found)


def _skipped_cells(trials: Trials) -> list[str]:
    by_reason: dict[str, list[str]] = {}
    for cell, reason in trials.skipped:
        by_reason.setdefault(reason, []).append(f"{cell.length}@{cell.position:g}")
    return [f"cells {names(cells)} were skipped: {reason}" for reason, cells in by_reason.items()]


def _losses(outcomes: Sequence[Outcomes]) -> tuple[str, ...]:
    lost, informative = [o for o in outcomes if o.lost], sum(o.informative for o in outcomes)
    if not lost:
        return ()
    counts = Counter(o.trial.cell.length for o in lost)
    where = ", ".join(f"{count} at {length} tokens" for length, count in sorted(counts.items()))
    return (f"the candidate misses {len(lost)} of {informative} needles that the reference retrieves: {where}",)
