"""Tables of the rniah axis: by cell and by needle family."""

from __future__ import annotations

from collections.abc import Sequence

from refract.axes.means import clustered_mean
from refract.axes.needles import FAMILIES
from refract.axes.outcomes import Outcomes
from refract.axes.retrieval import Cell, Trials
from refract.results import Estimate, Json, Statistic


def cell_table(trials: Trials, outcomes: Sequence[Outcomes]) -> list[Json]:
    """One row for every cell, asked or skipped, shortest first."""
    skipped = dict(trials.skipped)
    every = {t.cell for t in trials.asked} | skipped.keys()
    ordered = sorted(every, key=lambda cell: (cell.length, cell.position))
    return [_cell_row(cell, [o for o in outcomes if o.trial.cell == cell], skipped.get(cell)) for cell in ordered]


def _cell_row(cell: Cell, own: Sequence[Outcomes], skipped: str | None) -> dict[str, Json]:
    return {"length": cell.length, "position": cell.position, **_counts(own), "skipped": skipped}


def family_table(outcomes: Sequence[Outcomes]) -> list[Json]:
    """One row for every needle family that was asked."""
    groups = {family: [o for o in outcomes if o.trial.needle.family == family] for family in FAMILIES}
    return [{"family": family, **_counts(own)} for family, own in groups.items() if own]


def _counts(own: Sequence[Outcomes]) -> dict[str, Json]:
    mean = nll_delta(own)
    return {
        "trials": len(own),
        "reference_hits": sum(o.reference == "hit" for o in own),
        "informative": sum(o.informative for o in own),
        "candidate_hits": sum(o.retained for o in own),
        "answer_nll_delta_nats": mean.value if isinstance(mean, Estimate) else mean,
    }


def nll_delta(outcomes: Sequence[Outcomes]) -> Statistic:
    """Mean change in nats of the right answers' tokens, by haystack: above 0 the candidate finds them less likely."""
    graded = [(delta, o.trial.haystack) for o in outcomes if o.graded for delta in o.nll_deltas]
    return clustered_mean([delta for delta, _ in graded], [name for _, name in graded])
