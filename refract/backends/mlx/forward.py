"""Forward passes over one sequence: prefill in chunks, and hidden states at chosen positions.

Both are work for a lane: they yield what has to be evaluated before the next chunk.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from refract.backends.mlx.cache import LayerSpec, SequenceCache
from refract.backends.mlx.lanes import Work
from refract.backends.mlx.model import SplitModel
from refract.work import TokenIds


def new_caches(specs: Sequence[LayerSpec]) -> list[SequenceCache]:
    """One empty cache a layer."""
    return [SequenceCache(spec) for spec in specs]


def prefill(
    model: SplitModel, specs: Sequence[LayerSpec], tokens: TokenIds, chunk: int, *, with_logits: bool
) -> Work[tuple[list[SequenceCache], mx.array, mx.array | None]]:
    """Caches that hold `tokens`, the last one's hidden state (1, 1, width), and its logits (1, 1, V) or None."""
    caches = new_caches(specs)
    hidden = mx.array([])
    for start in range(0, len(tokens), chunk):
        hidden = model.trunk(mx.array([tokens[start : start + chunk]]), cache=caches)[:, -1:]
        yield hidden, [cache.state for cache in caches]
    logits = model.head(hidden) if with_logits else None
    yield logits
    return caches, hidden, logits


def hidden_before(
    model: SplitModel, specs: Sequence[LayerSpec], tokens: TokenIds, start: int, chunk: int
) -> Work[mx.array]:
    """The hidden states (len(tokens) − start, width) that predict tokens[start:], taken `chunk` tokens at a time.

    What lies before the first scored position is prefilled in full chunks; only scored states are kept, so memory does
    not grow with depth beyond the caches.
    """
    caches = new_caches(specs)
    kept = []
    for first in range(0, len(tokens) - 1, chunk):
        hidden = model.trunk(mx.array([tokens[first : min(first + chunk, len(tokens) - 1)]]), cache=caches)[0]
        skip = max(0, start - 1 - first)
        if skip < hidden.shape[0]:
            kept.append(hidden[skip:])
        yield kept[-1:] or hidden[-1], [cache.state for cache in caches]
    return mx.concatenate(kept, axis=0)
