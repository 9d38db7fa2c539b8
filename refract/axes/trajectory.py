"""Axis A: how far greedy continuations under the candidate follow those under the reference, token by token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from refract.axes.anchors import Anchors, plan_anchors
from refract.axes.answers import reasons, too_many_missing
from refract.axes.base import Answers, PlanContext
from refract.axes.continuations import Paired, read_pairs
from refract.axes.degeneration import constant_reference, findings
from refract.axes.divergences import category_table, statistics, survival
from refract.axes.prefixes import NEAR_TIE, Comparison, compare
from refract.engine import Capability
from refract.results import AxisResult, Json, Link, Unit
from refract.stats import estimate
from refract.work import Request

LINK: Link = "100*r"
UNIT: Unit = "prompt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """The axis; its only knobs are the run's own, the prompts and `n_predict`."""

    name: ClassVar[str] = "trajectory"
    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.GENERATE})

    def plan(self, context: PlanContext) -> TrajectoryPlan:
        """Raises: PromptsError when no prompt fits the context."""
        return TrajectoryPlan(context=context, anchors=plan_anchors(context))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryPlan:
    """The prompts' continuations on both sides."""

    context: PlanContext
    anchors: Anchors

    @property
    def max_tokens(self) -> int:
        """The longest prompt and continuation together."""
        return self.anchors.max_tokens

    @property
    def parameters(self) -> Mapping[str, Json]:
        """The budget, on which the score depends, and how prompts were given."""
        return {
            "n_predict": self.context.n_predict,
            "near_tie": NEAR_TIE,
            "chat_template": self.context.tokenizer.has_chat_template,
        }

    def reference(self) -> Sequence[Request]:
        """One continuation of each prompt."""
        return [anchor.reference for anchor in self.anchors.items]

    def candidate(self, reference: Answers) -> Sequence[Request]:
        """The same prompts, whatever the reference said."""
        return [anchor.candidate for anchor in self.anchors.items]

    def score(self, reference: Answers, candidate: Answers) -> AxisResult:
        """100 · mean over prompts of p / L: p tokens of common prefix, L the longer length."""
        asked = [(a.prompt.id, a.reference, a.candidate) for a in self.anchors.items]
        paired = read_pairs(asked, reference, candidate)
        prompts = {a.prompt.id: a.prompt for a in self.anchors.items}
        compared = [compare(self.context.tokenizer, prompts[name], *pair) for name, pair in paired.pairs.items()]
        if too_many_missing(len(paired.failures), paired.total):
            return self._failed(paired, compared)
        samples = tuple(c.sample() for c in compared)
        columns = [s.numerator for s in samples], [s.denominator for s in samples], [s.cluster for s in samples]
        doubt = constant_reference([c.pair for c in compared])
        return AxisResult(
            axis=Trajectory.name,
            status="low-confidence" if doubt else "ok",
            score=estimate.score(LINK, *columns),
            reason=doubt,
            link=LINK,
            unit=UNIT,
            protocol="decode",
            statistics={**statistics(compared), "prompts": len(samples), "prompts_failed": len(paired.failures)},
            series={"survival": survival(compared, self.context.n_predict), "categories": category_table(compared)},
            samples=samples,
            warnings=(*self.anchors.warnings, *paired.warnings("prompts")),
            findings=findings([c.pair for c in compared]),
        )

    def _failed(self, paired: Paired, compared: Sequence[Comparison]) -> AxisResult:
        count, why = len(paired.failures), reasons(paired.failures.values())
        return AxisResult(
            axis=Trajectory.name,
            status="failed",
            score=None,
            reason=f"{count} of {paired.total} prompts could not be scored: {why}",
            link=LINK,
            unit=UNIT,
            protocol="decode",
            statistics={"prompts": len(compared), "prompts_failed": count},
            samples=tuple(c.sample() for c in compared),
            warnings=self.anchors.warnings,
            findings=findings([c.pair for c in compared]),
        )
