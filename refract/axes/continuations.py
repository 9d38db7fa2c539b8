"""Continuations read side by side: the pairs that can be scored, and why the others cannot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from refract.axes.answers import answer_of, reasons
from refract.axes.base import Answers
from refract.axes.tokens import content
from refract.work import Failure, Generate, Generation

Continuations = tuple[Generation, Generation]
"""(reference, candidate)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Paired:
    """By the name of what was asked: what both sides answered, and what cannot be scored."""

    pairs: Mapping[str, Continuations]
    failures: Mapping[str, Failure]

    @property
    def total(self) -> int:
        """How many were asked."""
        return len(self.pairs) + len(self.failures)

    def warnings(self, noun: str) -> tuple[str, ...]:
        """What to say about the failures, none when there are none."""
        if not self.failures:
            return ()
        return (f"{len(self.failures)} of {self.total} {noun} were not scored: {reasons(self.failures.values())}",)


def read_pairs(requests: Iterable[tuple[str, Generate, Generate]], reference: Answers, candidate: Answers) -> Paired:
    """The answers to (name, reference's request, candidate's request); empty on both sides is a failure.

    An answer is empty when it holds no token before the end of sequence: two such answers measure nothing.
    """
    pairs: dict[str, Continuations] = {}
    failures: dict[str, Failure] = {}
    for name, for_reference, for_candidate in requests:
        ours = answer_of(reference, for_reference, Generation)
        theirs = answer_of(candidate, for_candidate, Generation)
        if isinstance(ours, Failure):
            failures[name] = Failure(kind=f"reference {ours.kind}", message=ours.message)
        elif isinstance(theirs, Failure):
            failures[name] = Failure(kind=f"candidate {theirs.kind}", message=theirs.message)
        elif not (content(ours) or content(theirs)):
            failures[name] = Failure(kind="silence", message="both sides gave an empty answer")
        else:
            pairs[name] = (ours, theirs)
    return Paired(pairs=pairs, failures=failures)
