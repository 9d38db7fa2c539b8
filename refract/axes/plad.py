"""Axis D: whether the candidate drifts further than the reference when a request is changed a little."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from refract.axes.anchors import choose_evenly, plan_anchors
from refract.axes.base import Answers, PlanContext
from refract.axes.perturbations import PERTURBATIONS
from refract.axes.plad_result import plad_result
from refract.axes.variants import Skipped, Variant, plan_variants
from refract.engine import Capability
from refract.errors import PromptsError, UsageError
from refract.results import AxisResult, Json
from refract.work import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Plad:
    """The axis: at most `prompts_limit` prompts, evenly over their categories, each with every perturbation."""

    name: ClassVar[str] = "plad"
    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.GENERATE})

    prompts_limit: int = 24

    def plan(self, context: PlanContext) -> PladPlan:
        """Raises: PromptsError when no prompt fits the context, or when a perturbation applies to none of them."""
        if self.prompts_limit < 1:
            message = f"plad needs at least one prompt, found a limit of {self.prompts_limit}"
            raise UsageError(message, hint="raise the limit, or leave plad out of --axes")
        anchors = plan_anchors(context)
        chosen = choose_evenly(anchors.items, self.prompts_limit)
        variants, skipped = plan_variants(context, chosen)
        idle = [kind for kind in PERTURBATIONS if not any(v.kind == kind for v in variants)]
        if idle:
            raise PromptsError(
                f"the perturbation {idle[0]} applies to none of the {len(chosen)} prompts of {context.prompts.name}: "
                "an error in the prompt set",
                hint="add prompts with some plain prose, or leave plad out of --axes",
            )
        return PladPlan(knobs=self, context=context, variants=variants, skipped=skipped, notes=anchors.warnings)


@dataclass(frozen=True, slots=True, kw_only=True)
class PladPlan:
    """The prompts as they are, asked once for all axes, and every changed version of them."""

    knobs: Plad
    context: PlanContext
    variants: tuple[Variant, ...]
    skipped: tuple[Skipped, ...]
    notes: tuple[str, ...]

    @property
    def max_tokens(self) -> int:
        """The longest prompt and continuation together."""
        requests = [r for v in self.variants for r in (v.anchor.reference, v.request)]
        return max(len(r.prompt) + r.max_new_tokens for r in requests)

    @property
    def parameters(self) -> Mapping[str, Json]:
        """What decides which versions are asked, and how far they are followed."""
        return {
            "n_predict": self.context.n_predict,
            "prompts_limit": self.knobs.prompts_limit,
            "perturbations": list(PERTURBATIONS),
            "seed": self.context.seed,
            "chat_template": self.context.tokenizer.has_chat_template,
        }

    def reference(self) -> Sequence[Request]:
        """The prompts and their changed versions."""
        return list(dict.fromkeys(r for v in self.variants for r in (v.anchor.reference, v.request)))

    def candidate(self, reference: Answers) -> Sequence[Request]:
        """The same, whatever the reference said."""
        return list(dict.fromkeys(r for v in self.variants for r in (v.anchor.candidate, v.request)))

    def score(self, reference: Answers, candidate: Answers) -> AxisResult:
        """100 · exp(−5 · |mean e|), e = drift of the candidate − drift of the reference, signed."""
        return plad_result(
            self.variants, self.skipped, reference, candidate, tokenizer=self.context.tokenizer, notes=self.notes
        )
