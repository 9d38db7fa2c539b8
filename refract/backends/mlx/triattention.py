"""How much attention a cached key can expect: a trigonometric series in distance, from means of the queries.

TriAttention, as its authors' own implementation has it: queries before their rotation gather around a mean q̄ that
differs from 0, so a key k at position p can expect of queries at t + o, over offsets o of 1, 2, 4, … 65,536 tokens,

    score = mean or max over o of Σ_f s_f² |q̄_f||k_f| cos((t − p + o) ω_f + arg q̄_f k̄_f*) + Σ_f s_f² (a_f − |q̄_f|) |k_f|

with q̄_f, k_f the rotary pairs as complex numbers before rotation, a_f the mean of |q_f|, ω_f and s_f the pair's
frequency and scale. The first term is the dot product of the cached key, rotated as it is, with q̄ rotated to t + o.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from refract.backends.mlx.rotary import Complex, Floats, Rotary

OFFSETS = 2.0 ** np.arange(17)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class QueryMeans:
    """One layer's queries so far, before rotation: sums (H, F) over `count` tokens of the pairs and of their sizes."""

    pairs: Complex
    sizes: Floats
    count: int

    @classmethod
    def none(cls, heads: int, pairs: int) -> QueryMeans:
        """Those of no query."""
        return cls(pairs=np.zeros((heads, pairs), np.complex128), sizes=np.zeros((heads, pairs)), count=0)

    def with_queries(self, queries: npt.NDArray[np.floating], first: int, rotary: Rotary) -> QueryMeans:
        """These and `queries` (H, n, D), rotated as attention reads them, of the n positions from `first` on."""
        positions = np.arange(first, first + queries.shape[1])
        found = rotary.undone(rotary.pairs(queries), positions)
        return QueryMeans(
            pairs=self.pairs + found.sum(axis=1),
            sizes=self.sizes + np.abs(found).sum(axis=1),
            count=self.count + queries.shape[1],
        )


def head_scores(
    keys: npt.NDArray[np.floating], means: QueryMeans, rotary: Rotary, *, last: int, largest: bool
) -> Floats:
    """The scores (H, n) that every attention head gives the cached keys (H_kv, n, D) after the token at `last`.

    With `largest` an offset's best counts, else the mean over offsets. Attention head h reads key head h // (H / H_kv).
    Raises: ValueError without a query.
    """
    if not means.count:
        raise ValueError("no query was seen")
    mean, size = means.pairs / means.count, means.sizes / means.count
    turned = np.exp(1j * rotary.omega * (last + OFFSETS)[:, None])  # (O, F)
    expected = mean * rotary.scale  # a cached key holds its own scale
    shared, group = len(keys), len(mean) // len(keys)
    if largest:
        queries = rotary.flat(expected[:, None] * turned).reshape(shared, group * len(OFFSETS), -1)
    else:
        queries = rotary.flat(expected * turned.mean(axis=0)).reshape(shared, group, -1)
    series = (queries @ keys.swapaxes(1, 2)).reshape(len(mean), -1, keys.shape[1]).max(axis=1)
    sizes = np.abs(rotary.pairs(keys))  # (H_kv, n, F)
    spread = ((size - np.abs(mean)) * rotary.scale).reshape(shared, group, -1)
    extra = (spread @ sizes.swapaxes(1, 2)).reshape(series.shape)
    found: Floats = series + extra
    return found


def joint_scores(by_layer: Iterable[Floats], *, union: bool, normalised: bool) -> Floats:
    """One score (n,) a token from every layer's head scores (H, n): their mean, or with `union` their maximum.

    The k tokens with the highest maximum are those of the paper's union mode: each head's own k best, the best k of
    these by their maximum. With `normalised` every head's scores have mean 0 and standard deviation 1 first.
    Raises: ValueError without a layer.
    """
    found = list(by_layer)
    if not found:
        raise ValueError("no layer has scores")
    heads = np.concatenate(found)
    if normalised:
        spread = heads.std(axis=1, keepdims=True)
        heads = (heads - heads.mean(axis=1, keepdims=True)) / np.where(spread > 0.0, spread, 1.0)
    joint: Floats = heads.max(axis=0) if union else heads.mean(axis=0)
    return joint
