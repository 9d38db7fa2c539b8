"""What attention reads of a cache: everything, or only the best blocks, or all but the smallest weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
from mlx_lm.models.base import scaled_dot_product_attention

from refract.backends.mlx.evicting import Watched
from refract.backends.mlx.selection import BlockSelection, small_weights, without_small_weights


@dataclass(slots=True)
class Tally:
    """What passes of one token read: parts and wholes, one entry a layer and pass, as arrays of one number."""

    parts: list[mx.array] = field(default_factory=list)
    wholes: list[mx.array] = field(default_factory=list)

    @property
    def share(self) -> float | None:
        """The parts of the wholes; None where nothing was read in part."""
        total = float(sum(self.wholes, mx.array(0.0)))
        return float(sum(self.parts, mx.array(0.0))) / total if total else None


class PartialReader:
    """Attention that reads a part of the cache when one token is decoded, and all of it otherwise.

    `selection` chooses blocks in layers that attend to everything; weights below `threshold` give nothing. Queries are
    left with caches that ask for them. While `keys` and `weights` are there, they count what was read of either.
    """

    def __init__(self, selection: BlockSelection | None, threshold: float) -> None:
        self.selection, self.threshold = selection, threshold
        self.keys: Tally | None = None
        self.weights: Tally | None = None

    def __call__(
        self,
        queries: mx.array,
        keys: mx.array,
        values: mx.array,
        cache: Any,
        scale: float,
        mask: mx.array | str | None,
        sinks: mx.array | None = None,
    ) -> mx.array:
        """The output (B, H, n, D) of attention."""
        if isinstance(cache, Watched):
            cache.queries = queries
        decoding = queries.shape[2] == 1 and not isinstance(mask, str)
        if decoding and self.selection and cache.spec.window is None:
            mask = self._selected(self.selection, queries, keys, mask)
        output = scaled_dot_product_attention(queries, keys, values, cache=cache, scale=scale, mask=mask, sinks=sinks)
        if decoding and self.threshold:
            small = small_weights(queries, keys, scale=scale, mask=mask, sinks=sinks, below=self.threshold)
            if self.weights is not None:
                self.weights.parts.append((small > 0.0).sum())
                self.weights.wholes.append(_valid(mask, queries, keys).sum())
            output = without_small_weights(output, small, values)
        return output

    def _selected(
        self, selection: BlockSelection, queries: mx.array, keys: mx.array, mask: mx.array | None
    ) -> mx.array:
        valid = mx.ones((keys.shape[0], 1, 1, keys.shape[2]), mx.bool_) if mask is None else mask
        chosen = selection.mask(queries, keys, valid)
        if self.keys is not None:
            self.keys.parts.append(chosen.sum())
            self.keys.wholes.append(_valid(mask, queries, keys).sum())
        return chosen


def _valid(mask: mx.array | None, queries: mx.array, keys: mx.array) -> mx.array:
    shape = (keys.shape[0], queries.shape[1], 1, keys.shape[2])
    return mx.ones(shape, mx.bool_) if mask is None else mx.broadcast_to(mask, shape)
