"""Forward passes over one sequence: prefill in chunks, and hidden states at chosen positions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import mlx.core as mx

from refract.backends.mlx.cache import LayerSpec, SequenceCache
from refract.backends.mlx.model import SplitModel
from refract.work import TokenIds

CHUNK = 512  # tokens a prefill pass takes; part of the identity, since it can change the last bits of a result


def new_caches(specs: Sequence[LayerSpec]) -> list[SequenceCache]:
    """One empty cache a layer."""
    return [SequenceCache(spec) for spec in specs]


def passes(model: SplitModel, caches: list[SequenceCache], tokens: TokenIds, chunk: int) -> Iterator[tuple[int, mx.array]]:
    """For each chunk of `tokens`: the index of its first token and the hidden states (n, width) after it."""
    for start in range(0, len(tokens), chunk):
        hidden = model.trunk(mx.array([tokens[start : start + chunk]]), cache=caches)
        yield start, hidden[0]


def prefill(model: SplitModel, specs: Sequence[LayerSpec], tokens: TokenIds) -> tuple[list[SequenceCache], mx.array]:
    """Caches that hold `tokens` and the hidden state (width,) after the last one."""
    caches = new_caches(specs)
    last = None
    for _, hidden in passes(model, caches, tokens, CHUNK):
        last = hidden[-1]
        mx.async_eval(last, [cache.state for cache in caches])
    if last is None:
        raise ValueError("nothing to prefill")
    return caches, last


def hidden_before(
    model: SplitModel, specs: Sequence[LayerSpec], tokens: TokenIds, start: int, chunk: int
) -> mx.array:
    """The hidden states (len(tokens) − start, width) that predict tokens[start:], prefilled `chunk` tokens at a time."""
    caches = new_caches(specs)
    kept = []
    for first, hidden in passes(model, caches, tokens[:-1], chunk):
        skip = max(0, start - 1 - first)
        if skip < hidden.shape[0]:
            kept.append(hidden[skip:])
        mx.async_eval(hidden, [cache.state for cache in caches])
    return mx.concatenate(kept, axis=0)
