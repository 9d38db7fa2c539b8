"""Reads of a part of the cache: the best blocks of keys, and attention without its smallest weights."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import sqrt

import mlx.core as mx
import numpy as np

from refract.kv import KVConfig

# A block's score is .7 · the largest + .3 · the mean over the query heads that share its keys (MLX-RFSN).
_LARGEST, _MEAN = 0.7, 0.3
_SKETCH = 32  # dimensions of the random projection that stands in for keys and queries with score=jl


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSelection:
    """Which blocks of `size` keys one query reads: the share `ratio` of them with the highest scores.

    A block's score is the product of the query with the mean of its keys, with `sketched` of both projected to 32
    random dimensions (Johnson–Lindenstrauss). The first `sink` and the newest `recent` blocks are always read and count
    towards the share; the key heads of a layer choose on their own.
    """

    size: int = 64
    ratio: float = 0.5
    sink: int = 1
    recent: int = 2
    sketched: bool = False
    seed: int = 0

    def mask(self, queries: mx.array, keys: mx.array, valid: mx.array) -> mx.array:
        """Which keys are read (B, H, 1, n), of queries (B, H, 1, D), keys (B, H_kv, n, D) and valid (B, 1, 1, n)."""
        batch, shared, length, _ = keys.shape
        blocks = -(-length // self.size)
        usable = _padded(valid, blocks * self.size).reshape(batch, 1, blocks, self.size)
        present = usable.any(axis=-1)  # (B, 1, blocks)
        count = present.sum(axis=-1, keepdims=True)
        number = mx.cumsum(present, axis=-1) - 1
        forced = (number < self.sink) | (number >= count - self.recent)
        scores = mx.where(forced, mx.inf, self._scores(queries, keys, usable))
        scores = mx.where(present, scores, -mx.inf)
        rank = mx.argsort(mx.argsort(-scores, axis=-1), axis=-1)
        wanted = mx.maximum(mx.ceil(count * self.ratio - 1e-4), min(self.sink + self.recent, blocks))
        chosen = mx.repeat(rank < wanted, self.size, axis=-1)[:, :, None, :length] & valid
        return mx.repeat(chosen, queries.shape[1] // shared, axis=1)

    def _scores(self, queries: mx.array, keys: mx.array, usable: mx.array) -> mx.array:
        """The score of every block (B, H_kv, blocks)."""
        batch, shared, _, dim = keys.shape
        _, _, blocks, size = usable.shape
        padded = mx.pad(keys, [(0, 0), (0, 0), (0, blocks * size - keys.shape[2]), (0, 0)])
        members = padded.reshape(batch, shared, blocks, size, dim) * usable[..., None]
        means = members.sum(axis=3) / mx.maximum(usable.sum(axis=-1, keepdims=True), 1)
        grouped = queries.reshape(batch, shared, -1, dim)
        if self.sketched:
            projection = _projection(dim, self.seed)
            grouped, means = grouped @ projection, means @ projection
        products = grouped @ means.swapaxes(-1, -2)  # (B, H_kv, H / H_kv, blocks)
        return _LARGEST * products.max(axis=2) + _MEAN * products.mean(axis=2)


@cache
def _projection(dim: int, seed: int) -> mx.array:
    """A Gaussian matrix (dim, 32) that keeps dot products on average."""
    drawn = np.random.default_rng(seed).standard_normal((dim, _SKETCH)) / sqrt(_SKETCH)
    return mx.array(drawn.astype(np.float32))


def _padded(valid: mx.array, length: int) -> mx.array:
    return mx.pad(valid, [(0, 0), (0, 0), (0, 0), (0, length - valid.shape[-1])])


def small_weights(
    queries: mx.array, keys: mx.array, *, scale: float, mask: mx.array | None, sinks: mx.array | None, below: float
) -> mx.array:
    """The attention weights (B, H_kv, H / H_kv, m, n) that are below `below`, 0 in place of the others."""
    batch, shared, _, dim = keys.shape
    grouped = queries.reshape(batch, shared, -1, queries.shape[2], dim)
    scores = scale * (grouped @ keys[:, :, None].swapaxes(-1, -2)).astype(mx.float32)
    if mask is not None:
        full = mx.broadcast_to(mask, (batch, queries.shape[1], queries.shape[2], keys.shape[2]))
        scores = mx.where(full.reshape(scores.shape), scores, -mx.inf)
    total = mx.logsumexp(scores, axis=-1, keepdims=True)
    if sinks is not None:
        total = mx.logaddexp(total, sinks.astype(mx.float32).reshape(1, shared, -1, 1, 1))
    weights = mx.exp(scores - total)
    return mx.where(weights < below, weights, 0.0)


def without_small_weights(output: mx.array, small: mx.array, values: mx.array) -> mx.array:
    """Attention's `output` (B, H, m, D) less what the weights `small` gave it; the rest is not scaled up.

    Exactly `output` where there are none. At most `below` · n · max‖v‖ away from it otherwise.
    """
    lost = small @ values[:, :, None].astype(mx.float32)
    return output - lost.reshape(output.shape).astype(output.dtype)


def block_selection(kv: KVConfig) -> BlockSelection | None:
    """The selection that `kv` names, None where everything is read."""
    if kv.get("select") == "none":
        return None
    return BlockSelection(
        size=int(kv.option("select", "size")),
        ratio=float(kv.option("select", "ratio")),
        sink=int(kv.option("select", "sink")),
        recent=int(kv.option("select", "recent")),
        sketched=kv.option("select", "score") == "jl",
        seed=kv.seed,
    )
