"""Divergences read from answers, joined position by position, with what is missing or not finite beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from refract.axes.answers import answer_of
from refract.axes.base import Answers
from refract.work import CompareBase, Divergence, Failure

F64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A window or a prompt: its name, its category, and the beginning of its text."""

    id: str
    category: str
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stretch:
    """The N scored positions of one place, the first of them token `start`; `divergence` as the engine gave it."""

    place: Place
    start: int
    divergence: Divergence

    @property
    def kl(self) -> F64:
        """(N,) nats."""
        return self.divergence.kl.astype(np.float64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Measured:
    """All stretches of one kind, and the failures by the name of their place."""

    stretches: tuple[Stretch, ...]
    failures: Mapping[str, Failure]

    @property
    def total(self) -> int:
        """How many places were asked for."""
        return len(self.stretches) + len(self.failures)

    @property
    def positions(self) -> int:
        """Scored positions over all places."""
        return sum(len(s.divergence) for s in self.stretches)

    @property
    def estimators(self) -> tuple[str, ...]:
        """The estimators found, sorted."""
        return tuple(sorted({s.divergence.estimator for s in self.stretches}))

    @property
    def reference_not_finite(self) -> int:
        """Positions at which the reference's own distribution is not finite."""
        return sum(int(np.sum(~s.divergence.reference_finite)) for s in self.stretches)

    @property
    def candidate_not_finite(self) -> int:
        """Positions at which the divergence is not finite although the reference is."""
        return sum(int(np.sum(s.divergence.reference_finite & ~np.isfinite(s.divergence.kl))) for s in self.stretches)

    @property
    def clusters(self) -> list[str]:
        """The place each position belongs to."""
        return [s.place.id for s in self.stretches for _ in range(len(s.divergence))]

    def column(self, name: str) -> F64:
        """An array of `Divergence` over all positions, as float64."""
        return join([getattr(s.divergence, name) for s in self.stretches])


def join(parts: Sequence[npt.NDArray[np.generic]]) -> F64:
    """The arrays end to end as float64."""
    return np.concatenate([np.asarray(p, dtype=np.float64) for p in parts]) if parts else np.zeros(0)


def read_divergences(requests: Mapping[Place, CompareBase | Failure], candidate: Answers) -> Measured:
    """The answers to one request for each place; an answer of the wrong length counts as a failure of the engine."""
    stretches: list[Stretch] = []
    failures: dict[str, Failure] = {}
    for place, request in requests.items():
        if isinstance(request, Failure):
            failures[place.id] = Failure(kind=f"reference {request.kind}", message=request.message)
            continue
        answer = answer_of(candidate, request, Divergence)
        expected = sum(window.positions for window in request.windows)
        if isinstance(answer, Failure):
            failures[place.id] = Failure(kind=f"candidate {answer.kind}", message=answer.message)
        elif len(answer) != expected:
            failures[place.id] = Failure(kind="short answer", message=f"{len(answer)} of {expected} positions")
        else:
            stretches.append(Stretch(place=place, start=request.windows[0].start, divergence=answer))
    return Measured(stretches=tuple(stretches), failures=failures)
