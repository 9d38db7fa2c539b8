"""Changed versions of prompts: which prompts, which changes, and what was left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from refract.axes.anchors import Anchor, generate
from refract.axes.base import PlanContext
from refract.axes.perturbations import PERTURBATIONS, Edit, perturb
from refract.work import Generate


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """An anchor whose last message was changed; both configurations get the same request."""

    anchor: Anchor
    kind: str
    edit: Edit
    request: Generate

    @property
    def id(self) -> str:
        """Prompt and perturbation: "p7/typo"."""
        return f"{self.anchor.prompt.id}/{self.kind}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A perturbation that was not asked of a prompt, and why."""

    prompt: str
    kind: str
    reason: str


def plan_variants(context: PlanContext, anchors: Sequence[Anchor]) -> tuple[tuple[Variant, ...], tuple[Skipped, ...]]:
    """Every perturbation of every anchor, and those that do not apply, fit or change a token."""
    made = [_variant(context, anchor, kind) for anchor in anchors for kind in PERTURBATIONS]
    return tuple(m for m in made if isinstance(m, Variant)), tuple(m for m in made if isinstance(m, Skipped))


def _variant(context: PlanContext, anchor: Anchor, kind: str) -> Variant | Skipped:
    *earlier, last = anchor.prompt.messages
    edit = perturb(last.content, kind, seed=context.seed, prompt_id=anchor.prompt.id)
    if edit is None:
        return Skipped(prompt=anchor.prompt.id, kind=kind, reason="not applicable")
    ids = context.tokenizer.render((*earlier, replace(last, content=edit.text)))
    if ids == anchor.candidate.prompt:
        return Skipped(prompt=anchor.prompt.id, kind=kind, reason="gives the same tokens")
    if len(ids) + context.n_predict > context.context_length:
        return Skipped(prompt=anchor.prompt.id, kind=kind, reason="exceeds the context")
    return Variant(anchor=anchor, kind=kind, edit=edit, request=generate(context, ids))
