"""The generations that axes share: one greedy continuation for each prompt, asked once for all of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from refract.axes.answers import names
from refract.axes.base import PlanContext
from refract.axes.tokens import begin_token
from refract.data.prompts import Prompt
from refract.engine import Capability
from refract.errors import PromptsError
from refract.work import Generate, TokenIds

TOP_K = 2  # the margin of a decision is between the two most probable tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """A prompt with the requests for its continuation; only the reference keeps its distributions."""

    prompt: Prompt
    reference: Generate
    candidate: Generate


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchors:
    """The prompts that fit the context, in the order of their file, and what to say about the others."""

    items: tuple[Anchor, ...]
    warnings: tuple[str, ...]

    @property
    def max_tokens(self) -> int:
        """The longest prompt and continuation together."""
        return max(len(a.reference.prompt) + a.reference.max_new_tokens for a in self.items)


def plan_anchors(context: PlanContext) -> Anchors:
    """The anchors of all prompts that fit; equal contexts give equal requests, so that axes share their answers.

    A prompt is left out, and a warning says so, when its rendered length and `n_predict` exceed the context, or when it
    renders to the tokens of an earlier one.

    Raises: PromptsError when no prompt is left.
    """
    fitting: dict[TokenIds, Prompt] = {}
    too_long: list[str] = []
    copies: list[str] = []
    for prompt in context.prompts.prompts:
        ids = context.tokenizer.render(prompt.messages)
        if len(ids) + context.n_predict > context.context_length:
            too_long.append(prompt.id)
        elif ids in fitting:
            copies.append(prompt.id)
        else:
            fitting[ids] = prompt
    if not fitting:
        raise PromptsError(
            f"none of the {len(too_long)} prompts of {context.prompts.name} fits the model's context of "
            f"{context.context_length} tokens with {context.n_predict} tokens to predict",
            hint="lower --n-predict or use shorter prompts",
        )
    items = tuple(_anchor(context, prompt, ids) for ids, prompt in fitting.items())
    return Anchors(items=items, warnings=tuple(_warnings(context, fitting, too_long, copies)))


def choose_evenly(anchors: Sequence[Anchor], limit: int) -> tuple[Anchor, ...]:
    """At most `limit` anchors, the categories taking turns, in the order of their file."""
    queues: dict[str, list[Anchor]] = {}
    for anchor in anchors:
        queues.setdefault(anchor.prompt.category, []).append(anchor)
    longest = max(map(len, queues.values()), default=0)
    turns = [queue[turn] for turn in range(longest) for queue in queues.values() if turn < len(queue)]
    chosen = {anchor.prompt.id for anchor in turns[:limit]}
    return tuple(anchor for anchor in anchors if anchor.prompt.id in chosen)


def generate(context: PlanContext, prompt: TokenIds, *, keep_base: bool = False) -> Generate:
    """The request to continue `prompt` by at most `n_predict` tokens, with the listing every axis can use."""
    return Generate(
        prompt=prompt,
        max_new_tokens=context.n_predict,
        top_k=TOP_K if Capability.TOP_K in context.capabilities else 0,
        keep_base=keep_base,
    )


def _anchor(context: PlanContext, prompt: Prompt, ids: TokenIds) -> Anchor:
    keep = Capability.KEEP_BASE in context.capabilities
    return Anchor(prompt=prompt, reference=generate(context, ids, keep_base=keep), candidate=generate(context, ids))


def _warnings(
    context: PlanContext, fitting: Iterable[TokenIds], too_long: list[str], copies: list[str]
) -> Iterable[str]:
    total = len(context.prompts.prompts)
    if too_long:
        yield f"{len(too_long)} of {total} prompts exceed the model's context and were skipped: {names(too_long)}"
    if copies:
        yield f"{len(copies)} of {total} prompts repeat an earlier one and were skipped: {names(copies)}"
    if not context.tokenizer.has_chat_template:
        yield "the model has no chat template: prompts were given as plain text"
    begin = begin_token(context.tokenizer)
    doubled = sum(begin is not None and ids[:2] == (begin, begin) for ids in fitting)
    if doubled:
        yield f"{doubled} of {total} prompts begin with two begin-of-sequence tokens, expected one"
