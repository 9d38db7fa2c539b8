"""Retrieval trials: what is asked at each (length, position) cell, and which cells cannot be asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from refract.axes.base import PlanContext
from refract.axes.haystacks import Haystack, cut_haystacks, fit_prompt
from refract.axes.needles import FAMILIES, Needle, make_needle, opens_thinking
from refract.work import Generate, ScoreTokens, TokenIds

_TAIL_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A rendered length in tokens and a place of the needle, 0 at the start and 1 at the end."""

    length: int
    position: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One needle in one haystack. `answer` are the ids of the right answer; `thinking`: the template opens thought."""

    id: str
    cell: Cell
    haystack: str
    needle: Needle
    depth: float
    answer: TokenIds
    thinking: bool
    ask: Generate
    grade: ScoreTokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """What is asked, and the reason for each cell that is not."""

    asked: tuple[Trial, ...]
    skipped: tuple[tuple[Cell, str], ...]


def doubling(up_to: int, *, steps: int = 4) -> tuple[int, ...]:
    """Lengths in tokens, each twice the one before, the last `up_to`."""
    return tuple(up_to >> (steps - 1 - i) for i in range(steps))


def cells(lengths: Sequence[int], positions: Sequence[float]) -> tuple[Cell, ...]:
    """Every length at every position."""
    return tuple(Cell(length=length, position=position) for length in lengths for position in positions)


def plan_trials(context: PlanContext, wanted: Sequence[Cell], *, trials: int, answer_tokens: int) -> Trials:
    """`trials` needles for every cell, the families taking turns, in haystacks of their own while there are enough.

    A cell in which one of them cannot be made is skipped whole, so that every cell asks the same families.
    """
    fitting = [cell for cell in wanted if cell.length + answer_tokens <= context.context_length]
    skipped = [
        (cell, f"{cell.length} + {answer_tokens} tokens exceed the model's context of {context.context_length}")
        for cell in wanted
        if cell not in fitting
    ]
    asked: list[Trial] = []
    if fitting:
        longest, count = max(cell.length for cell in fitting), len(fitting) * trials
        haystacks = cut_haystacks(context.corpus, context.tokenizer, longest=longest, count=count)
        for index, cell in enumerate(fitting):
            numbers = range(index * trials, (index + 1) * trials)
            made = [_trial(context, cell, n, trials, haystacks[n % len(haystacks)], answer_tokens) for n in numbers]
            reason = next((m for m in made if isinstance(m, str)), None)
            if reason is None:
                asked += [m for m in made if isinstance(m, Trial)]
            else:
                skipped.append((cell, reason))
    return Trials(asked=tuple(asked), skipped=tuple(skipped))


def _trial(
    context: PlanContext, cell: Cell, number: int, trials: int, haystack: Haystack, answer_tokens: int
) -> Trial | str:
    family = list(FAMILIES)[number % len(FAMILIES)]
    needle = make_needle(family, haystack.text, seed=context.seed, trial=number)
    if needle is None:
        return "every needle tried occurs in the haystack already"
    tokenizer = context.tokenizer
    fitted = fit_prompt(tokenizer, haystack, needle.facts, needle.question, position=cell.position, length=cell.length)
    if isinstance(fitted, int):
        too_long = f"the question and the template alone need about {fitted} tokens"
        return too_long if fitted > cell.length else f"the corpus has too little text for {cell.length} tokens"
    answer = tokenizer.encode(needle.answer if tokenizer.has_chat_template else f" {needle.answer}")
    return Trial(
        id=f"{cell.length}@{cell.position:g}/{number % trials}",
        cell=cell,
        haystack=haystack.id,
        needle=needle,
        depth=fitted.depth,
        answer=answer,
        thinking=opens_thinking(tokenizer.decode(fitted.prompt[-_TAIL_TOKENS:])),
        ask=Generate(prompt=fitted.prompt, max_new_tokens=answer_tokens),
        grade=ScoreTokens(tokens=(*fitted.prompt, *answer), start=len(fitted.prompt), top_k=0, step=1),
    )
