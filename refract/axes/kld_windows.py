"""What the kld axis scores: windows of the corpus, and windows whose cache is already deep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from refract.axes.base import PlanContext
from refract.axes.measured import Place
from refract.axes.windows import TextWindow, cut_windows, distinct
from refract.engine import Tokenizer
from refract.work import Window

DEPTH_STEP = 4
FIRST_DEPTH = 1024
DEEP_POSITIONS = 256  # scored in each deep window, as many as in a window of 512
DEEP_STEPS = 32  # scored where each is a step of its own
_OPENING_TOKENS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedWindow:
    """A window with its name in the report."""

    place: Place
    window: Window


def scored_windows(context: PlanContext, *, chunks: int, ctx: int) -> tuple[tuple[PlacedWindow, ...], int]:
    """The windows that make the score, and how many copies of others were left out.

    The second half of each is scored as llama-perplexity does, which reads the logits at positions ctx/2 … ctx-2 and so
    predicts the tokens from ctx/2 + 1 on (tools/perplexity/perplexity.cpp, b11434).
    """
    cut, copies = distinct(cut_windows(context.corpus, context.tokenizer, count=chunks, size=ctx))
    placed = [
        _placed(context.tokenizer, w, name=f"window-{i:03d}", category=w.category, start=ctx // 2 + 1)
        for i, w in enumerate(cut)
    ]
    return tuple(placed), copies


def deep_windows(context: PlanContext, *, depth: int, each: int, positions: int) -> tuple[PlacedWindow, ...]:
    """`each` windows at every depth, the last `positions` of each scored. Raises: CorpusError for too little text."""
    found: list[PlacedWindow] = []
    for deep in depths(depth):
        cut, _ = distinct(cut_windows(context.corpus, context.tokenizer, count=each, size=deep + positions))
        found += [
            _placed(context.tokenizer, w, name=f"depth-{deep}-{i:02d}", category=str(deep), start=deep)
            for i, w in enumerate(cut)
        ]
    return tuple(found)


def depths(deepest: int) -> Sequence[int]:
    """1k, 4k, 16k … below `deepest`, and `deepest` itself; none for 0."""
    found = []
    depth = FIRST_DEPTH
    while depth < deepest:
        found.append(depth)
        depth *= DEPTH_STEP
    return [*found, deepest] if deepest else []


def _placed(tokenizer: Tokenizer, cut: TextWindow, *, name: str, category: str, start: int) -> PlacedWindow:
    text = " ".join(tokenizer.decode(cut.tokens[:_OPENING_TOKENS]).split())
    place = Place(id=name, category=category, text=text)
    return PlacedWindow(place=place, window=Window(tokens=cut.tokens, start=start))
