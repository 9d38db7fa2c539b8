"""The plad axis' verdict: drifts of both configurations, their signed difference, and what was applied where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from refract.axes.answers import reasons, too_many_missing
from refract.axes.base import Answers
from refract.axes.continuations import Continuations, Paired, read_pairs
from refract.axes.degeneration import Pair, constant_answers, constant_reference, findings, indifference
from refract.axes.means import clustered_mean
from refract.axes.perturbations import PERTURBATIONS
from refract.axes.variants import Skipped, Variant
from refract.engine import Tokenizer
from refract.results import AxisResult, Estimate, Json, Link, Sample, Statistic, Unit
from refract.stats import estimate
from refract.stats.sequences import edit_distance
from refract.work import Failure, Generation

LINK: Link = "100*exp(-5*|r|)"
UNIT: Unit = "prompt"
OPPOSED = 0.05  # excess drift of either sign, clear of which two perturbations are said to cancel
NOTABLE = 0.045  # mean excess drift of a score of 80


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Drifts:
    """How far each configuration's own answer moved, as a share of the longer answer, and the answers themselves."""

    variant: Variant
    reference: float
    candidate: float
    pair: Pair

    @property
    def excess(self) -> float:
        """Candidate minus reference: above 0 the candidate is less stable, below 0 it reacts less than it should."""
        return self.candidate - self.reference

    def sample(self) -> Sample:
        """e over 1, by prompt."""
        edit, prompt = self.variant.edit, self.variant.anchor.prompt
        return Sample(
            id=self.variant.id,
            cluster=prompt.id,
            category=prompt.category,
            numerator=self.excess,
            denominator=1.0,
            detail={
                "prompt": prompt.id,
                "perturbation": self.variant.kind,
                "at": edit.at,
                "before": edit.before,
                "after": edit.after,
                "drift_reference": self.reference,
                "drift_candidate": self.candidate,
                "reference_text": self.pair.reference_text,
                "candidate_text": self.pair.candidate_text,
            },
        )


def plad_result(
    variants: Sequence[Variant],
    skipped: Sequence[Skipped],
    reference: Answers,
    candidate: Answers,
    *,
    tokenizer: Tokenizer,
    notes: tuple[str, ...],
) -> AxisResult:
    """100 · exp(−5 · |mean e|) over all changed prompts, or the reason why there is no score."""
    anchors = read_pairs(
        {v.anchor.prompt.id: (v.anchor.prompt.id, v.anchor.reference, v.anchor.candidate) for v in variants}.values(),
        reference,
        candidate,
    )
    changed = _without_lost_anchors(
        variants, read_pairs([(v.id, v.request, v.request) for v in variants], reference, candidate), anchors
    )
    drifts = [
        _drifts(tokenizer, v, anchors.pairs[v.anchor.prompt.id], changed.pairs[v.id])
        for v in variants
        if v.id in changed.pairs
    ]
    unchanged = [_pair(tokenizer, pair) for pair in anchors.pairs.values()]
    problem = _problem(changed, unchanged)
    opposed = None if problem else _opposed(drifts)
    doubt = constant_reference(unchanged) or opposed
    samples = tuple(d.sample() for d in drifts)
    columns = [s.numerator for s in samples], [s.denominator for s in samples], [s.cluster for s in samples]
    return AxisResult(
        axis="plad",
        status="failed" if problem else "low-confidence" if doubt else "ok",
        score=None if problem else estimate.score(LINK, *columns),
        reason=problem or doubt,
        link=LINK,
        unit=UNIT,
        protocol="decode",
        statistics=_statistics(drifts, skipped, changed),
        series={"perturbations": [_row(kind, drifts, skipped) for kind in PERTURBATIONS]},
        samples=samples,
        warnings=(*notes, *(changed.warnings("changed prompts") if not problem else ())),
        findings=(
            *([opposed] if opposed else _reaction(drifts)),
            *findings([d.pair for d in drifts], what="answers to changed prompts"),
        ),
    )


def _problem(changed: Paired, anchors: Sequence[Pair]) -> str | None:
    """What rules a score out. A candidate that says the same whatever it is asked is not robust, it does not listen."""
    if too_many_missing(len(changed.failures), changed.total):
        why = reasons(changed.failures.values())
        return f"{len(changed.failures)} of {changed.total} changed prompts could not be scored: {why}"
    repeated = constant_answers(anchors)
    if repeated:
        return (
            f"the candidate gives {repeated} of {len(anchors)} prompts one and the same text: its drift means nothing"
        )
    deaf = indifference(anchors, what="answers")
    return f"{deaf}: its drift means nothing" if deaf else None


def _opposed(drifts: Sequence[Drifts]) -> str | None:
    """Which perturbations the candidate over- and under-reacts to so far that their mean says nothing of either."""
    excesses = {kind: _excess([d for d in drifts if d.variant.kind == kind]) for kind in PERTURBATIONS}
    known = {kind: found for kind, found in excesses.items() if isinstance(found, Estimate)}
    above = [kind for kind, found in known.items() if found.low > OPPOSED]
    below = [kind for kind, found in known.items() if found.high < -OPPOSED]
    if not above or not below:
        return None
    signs = ", ".join(f"{kind} {known[kind].value:+.2f}" for kind in (*above, *below))
    return f"the candidate's excess drifts cancel in the mean: {signs}"


def _excess(drifts: Sequence[Drifts]) -> Statistic:
    return clustered_mean([d.excess for d in drifts], [d.variant.anchor.prompt.id for d in drifts], bounds=(-1.0, 1.0))


def _reaction(drifts: Sequence[Drifts]) -> list[str]:
    """A sentence on a mean excess drift that is large and clearly not 0."""
    found = _excess(drifts)
    if not isinstance(found, Estimate) or found.low <= 0.0 <= found.high or abs(found.value) < NOTABLE:
        return []
    ours, theirs = (sum(getattr(d, side) for d in drifts) / len(drifts) for side in ("candidate", "reference"))
    more = "more" if found.value > 0.0 else "less"
    return [
        f"the candidate reacts {more} than the reference to small changes of a prompt: "
        f"{ours:.0%} of its tokens change, {theirs:.0%} of the reference's"
    ]


def _without_lost_anchors(variants: Sequence[Variant], changed: Paired, anchors: Paired) -> Paired:
    """The changed prompts, those without a usable answer to the unchanged prompt among the failures."""
    lost = {v.id: anchors.failures[v.anchor.prompt.id] for v in variants if v.anchor.prompt.id in anchors.failures}
    kept: Mapping[str, Continuations] = {name: pair for name, pair in changed.pairs.items() if name not in lost}
    failures: Mapping[str, Failure] = {**changed.failures, **lost}
    return Paired(pairs=kept, failures=failures)


def _drifts(tokenizer: Tokenizer, variant: Variant, anchor: Continuations, changed: Continuations) -> Drifts:
    reference, candidate = (drift(a, c) for a, c in zip(anchor, changed, strict=True))
    return Drifts(variant=variant, reference=reference, candidate=candidate, pair=_pair(tokenizer, changed))


def drift(anchor: Generation, changed: Generation) -> float:
    """Edit distance in tokens over the longer length, 0 … 1; 0 when both are empty."""
    longer = max(len(anchor.tokens), len(changed.tokens))
    return edit_distance(anchor.tokens, changed.tokens) / longer if longer else 0.0


def _pair(tokenizer: Tokenizer, answers: Continuations) -> Pair:
    texts = [tokenizer.decode(answer.tokens) for answer in answers]
    return Pair(reference=answers[0], candidate=answers[1], reference_text=texts[0], candidate_text=texts[1])


def _statistics(drifts: Sequence[Drifts], skipped: Sequence[Skipped], changed: Paired) -> dict[str, Statistic]:
    clusters = [d.variant.anchor.prompt.id for d in drifts]
    return {
        "mean_excess_drift": _excess(drifts),
        "mean_drift_reference": clustered_mean([d.reference for d in drifts], clusters, bounds=(0.0, 1.0)),
        "mean_drift_candidate": clustered_mean([d.candidate for d in drifts], clusters, bounds=(0.0, 1.0)),
        "prompts": len(set(clusters)),
        "applied": changed.total,
        "skipped": len(skipped),
        "failed": len(changed.failures),
    }


def _row(kind: str, drifts: Sequence[Drifts], skipped: Sequence[Skipped]) -> dict[str, Json]:
    own = [d for d in drifts if d.variant.kind == kind]
    left_out = Counter(s.reason for s in skipped if s.kind == kind)
    return {
        "perturbation": kind,
        "applied": len(own),
        "skipped": left_out.total(),
        "skip_reasons": dict(left_out),
        "drift_reference": _mean([d.reference for d in own]),
        "drift_candidate": _mean([d.candidate for d in own]),
        "excess": _mean([d.excess for d in own]),
    }


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
