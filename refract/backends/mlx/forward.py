"""Forward passes over one sequence: prefill in chunks, and hidden states at chosen positions.

Both are work for a lane: they yield what has to be evaluated before the next chunk.
"""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx

from refract.backends.mlx.keeper import Keeper, OpenSequence, states
from refract.backends.mlx.lanes import Work
from refract.backends.mlx.model import SplitModel
from refract.work import TokenIds


def prefill(
    model: SplitModel, keeper: Keeper, tokens: TokenIds, chunk: int, *, with_logits: bool
) -> Work[tuple[OpenSequence, mx.array, mx.array | None]]:
    """The sequence that holds `tokens`, the last one's hidden state (1, 1, width), and its logits (1, 1, V) or None."""
    sequence, hidden = keeper.sequence(tokens), mx.array([])
    for start, end in _passes(sequence, len(tokens), chunk):
        hidden = model.trunk(mx.array([tokens[start:end]]), cache=sequence.caches)[:, -1:]
        yield hidden, states(sequence)
        sequence.passed(end - start)
    logits = model.head(hidden) if with_logits else None
    yield logits
    return sequence, hidden, logits


def hidden_before(model: SplitModel, keeper: Keeper, tokens: TokenIds, start: int, chunk: int) -> Work[mx.array]:
    """The hidden states (len(tokens) − start, width) that predict tokens[start:], taken `chunk` tokens at a time.

    What lies before the first scored position is prefilled in full chunks; only scored states are kept, so memory does
    not grow with depth beyond the caches.
    """
    sequence = keeper.sequence(tokens)
    kept = []
    for first, end in _passes(sequence, len(tokens) - 1, chunk):
        hidden = model.trunk(mx.array([tokens[first:end]]), cache=sequence.caches)[0]
        skip = max(0, start - 1 - first)
        if skip < hidden.shape[0]:
            kept.append(hidden[skip:])
        yield kept[-1:] or hidden[-1], states(sequence)
        sequence.passed(end - first)
    return mx.concatenate(kept, axis=0)


def _passes(sequence: OpenSequence, count: int, chunk: int) -> Iterator[tuple[int, int]]:
    """Where each pass over `count` tokens begins and ends."""
    start = 0
    while start < count:
        end = min(sequence.pass_end(start, chunk), count)
        yield start, end
        start = end
