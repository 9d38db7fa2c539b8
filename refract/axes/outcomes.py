"""Retrieval answers read: hit or miss on both sides, and how likely each side found the right answer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from refract.axes.answers import answer_of
from refract.axes.base import Answers
from refract.axes.continuations import Paired
from refract.axes.degeneration import Pair
from refract.axes.needles import Outcome, judge
from refract.axes.retrieval import Trial
from refract.axes.tokens import content
from refract.engine import Tokenizer
from refract.results import Sample
from refract.work import Failure, Generation, TokenScores


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outcomes:
    """What both sides made of a trial; `nll_deltas` in nats for each answer token, empty where nothing was graded."""

    trial: Trial
    reference: Outcome
    candidate: Outcome
    pair: Pair
    nll_deltas: tuple[float, ...]

    @property
    def graded(self) -> bool:
        """Whether the right answer was scored on both sides, with finite numbers."""
        return bool(self.nll_deltas) and all(map(math.isfinite, self.nll_deltas))

    @property
    def informative(self) -> bool:
        """Whether the trial says something about the candidate: the reference retrieved, and the candidate answered."""
        return self.reference == "hit" and self.candidate != "thinking"

    @property
    def retained(self) -> bool:
        """Whether the candidate retrieved what the reference did."""
        return self.informative and self.candidate == "hit"

    @property
    def lost(self) -> bool:
        """Whether the candidate missed what the reference retrieved."""
        return self.informative and self.candidate == "miss"

    def sample(self) -> Sample:
        """Hit over 1 where informative, 0 over 0 elsewhere."""
        trial, needle = self.trial, self.trial.needle
        return Sample(
            id=trial.id,
            cluster=trial.haystack,
            category=needle.family,
            numerator=float(self.retained),
            denominator=float(self.informative),
            detail={
                "length": trial.cell.length,
                "tokens": len(trial.ask.prompt),
                "position": trial.cell.position,
                "depth": trial.depth,
                "facts": list(needle.facts),
                "question": needle.question,
                "answer": needle.answer,
                "reference": self.reference,
                "candidate": self.candidate,
                "informative": self.informative,
                "reference_text": self.pair.reference_text,
                "candidate_text": self.pair.candidate_text,
                "nll_delta_nats": sum(self.nll_deltas) / len(self.nll_deltas) if self.graded else None,
            },
        )


def read_outcomes(
    trials: Sequence[Trial], paired: Paired, reference: Answers, candidate: Answers, *, tokenizer: Tokenizer
) -> tuple[Outcomes, ...]:
    """The outcomes of every trial that both sides answered; gradings where the answers hold them."""
    return tuple(
        _outcomes(trial, *paired.pairs[trial.id], tokenizer, _nll_deltas(trial, reference, candidate))
        for trial in trials
        if trial.id in paired.pairs
    )


def _outcomes(
    trial: Trial, reference: Generation, candidate: Generation, tokenizer: Tokenizer, deltas: tuple[float, ...]
) -> Outcomes:
    texts = [tokenizer.decode(content(side)) for side in (reference, candidate)]
    ours, theirs = (judge(text, trial.needle, thinking=trial.thinking) for text in texts)
    pair = Pair(reference=reference, candidate=candidate, reference_text=texts[0], candidate_text=texts[1])
    return Outcomes(trial=trial, reference=ours, candidate=theirs, pair=pair, nll_deltas=deltas)


def _nll_deltas(trial: Trial, reference: Answers, candidate: Answers) -> tuple[float, ...]:
    """Candidate minus reference for each answer token; () where a side was not graded."""
    ours = answer_of(reference, trial.grade, TokenScores)
    theirs = answer_of(candidate, trial.grade, TokenScores)
    if isinstance(ours, Failure) or isinstance(theirs, Failure):
        return ()
    with np.errstate(invalid="ignore"):  # inf - inf is NaN, which `graded` refuses
        deltas = ours.logprobs.astype(np.float64) - theirs.logprobs.astype(np.float64)
    return tuple(map(float, deltas))
