"""Modifiers that learn from the keys they are given: what all keys have in common, and how wide each dimension is.

    kmean   k − μ, with μ the mean of the first 1, 2, 4, … 2^s tokens: token p (from 0) takes the largest 2^s ≤ p + 1,
            its own key among them, so that the first token is stored exactly
    kcal N  R⁻¹ (R k / σ), with σ_j the RMS of dimension j of the rotated keys R k over the first N tokens, relative to
            that of all dimensions, kept within 1/4 … 4; earlier tokens take σ = 1, as does a head whose dimensions all
            lie within 10 % of each other

A stage's vector is 16 bits a value and one a head; what is removed is what is stored, rounding included. A mean taken
after RoPE holds the part of a common offset that turns slowly; what turns fast averages out and stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from refract.backends.mlx.key_modifiers import Start
from refract.errors import KVUnsupportedError

Turn = Callable[[mx.array], mx.array]  # a rotation of vectors (…, D)

_NARROWEST, _WIDEST = 0.25, 4.0
_EVEN = 0.1
FEWEST = 32  # calibration tokens


class Stages:
    """A table of vectors (B, H, S, D), one a stage, each learnt from all tokens up to the one that begins it."""

    def __init__(self, rule: KeyMean | KeyScale) -> None:
        self.rule = rule
        self.total: mx.array | None = None  # (B, H, 1, D) float32
        self.table: mx.array | None = None

    @property
    def arrays(self) -> tuple[mx.array, ...]:
        """The table and what the next stage is learnt from."""
        return () if self.total is None or self.table is None else (self.table, self.total)

    @arrays.setter
    def arrays(self, arrays: Sequence[mx.array]) -> None:
        if arrays:
            self.table, self.total = arrays

    def insert(self, row: int, other: Stages, count: int) -> None:
        """Takes over what another learnt of one sequence as that of `row`, of `count`."""
        if other.total is None or other.table is None:
            return
        if self.total is None:
            self._begin(mx.zeros((count, *other.total.shape[1:])))
        table, total = self.table, self.total
        if table is None or total is None:
            raise RuntimeError("nothing was learnt yet")
        missing = other.table.shape[2] - table.shape[2]
        if missing > 0:
            table = mx.pad(table, [(0, 0), (0, 0), (0, missing), (0, 0)])
        table[row, :, : other.table.shape[2]], total[row] = other.table[0], other.total[0]
        self.table, self.total = table, total

    def reduce(self, keys: mx.array, start: Start) -> mx.array:
        """As `KeyState` says; with a position a sequence, one token of each."""
        turned = self.rule.turn(keys)
        self._begin(turned)
        if isinstance(start, mx.array):
            self._learn_rows(turned, np.array(start))
        else:
            self._learn(turned, start)
        return self.rule.unturn(self.rule.remove(turned, self._of(start, keys.shape[2])))

    def restore(self, keys: mx.array, start: Start) -> mx.array:
        """As `KeyState` says."""
        return self.rule.unturn(self.rule.add(self.rule.turn(keys), self._of(start, keys.shape[2])))

    def _begin(self, keys: mx.array) -> None:
        if self.total is None:
            batch, heads, _, dim = keys.shape
            self.total = mx.zeros((batch, heads, 1, dim))
            self.table = mx.full((batch, heads, 1, dim), self.rule.neutral, dtype=mx.float16)

    def _learn(self, keys: mx.array, start: int) -> None:
        """Takes in tokens that follow those seen so far."""
        count, done = keys.shape[2], 0
        for end in self.rule.ends(start, start + count):
            self._add(keys[:, :, done : end - start])
            self._put(self.rule.stage(end - 1), self.rule.value(self._sum, end))
            done = end - start
        self._add(keys[:, :, done:])

    def _learn_rows(self, keys: mx.array, positions: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
        """Takes in one token of every sequence; a negative position is none."""
        counted = mx.array(positions >= 0)[:, None, None, None]
        self._add(mx.where(counted, keys, 0.0))
        for row, position in enumerate(positions.tolist()):
            if position >= 0 and list(self.rule.ends(position, position + 1)):
                self._put(self.rule.stage(position), self.rule.value(self._sum[row : row + 1], position + 1), row)

    @property
    def _sum(self) -> mx.array:
        if self.total is None:
            raise RuntimeError("nothing was learnt yet")
        return self.total

    def _add(self, keys: mx.array) -> None:
        if keys.shape[2]:
            self.total = self._sum + mx.sum(self.rule.measure(keys), axis=2, keepdims=True)

    def _put(self, stage: int, value: mx.array, row: int | None = None) -> None:
        table = self.table
        if table is None:
            raise RuntimeError("nothing was learnt yet")
        if (missing := stage + 1 - table.shape[2]) > 0:
            table = mx.pad(table, [(0, 0), (0, 0), (0, missing), (0, 0)])
        rows = slice(None) if row is None else slice(row, row + 1)
        table[rows, :, stage : stage + 1] = value.astype(mx.float16)
        self.table = table

    def _of(self, start: Start, count: int) -> mx.array:
        """The vectors of `count` tokens from `start` on: (B, H, count, D) float32."""
        if self.table is None:
            raise RuntimeError("nothing was learnt yet")
        if isinstance(start, mx.array):
            stages = mx.array([self.rule.stage(max(0, p)) for p in np.array(start).tolist()])
            return self.table[mx.arange(len(stages)), :, stages][:, :, None].astype(mx.float32)
        stages = mx.array([self.rule.stage(p) for p in range(start, start + count)])
        return self.table[:, :, stages].astype(mx.float32)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KeyMean:
    """Keys less the mean of the first 2^s."""

    name: str = "kmean"
    staged: bool = True
    warmup: int = 0
    neutral: float = 0.0

    def __deepcopy__(self, memo: Any) -> KeyMean:
        return self  # a value; a copied cache shares it

    def start(self) -> Stages:
        """No mean yet."""
        return Stages(self)

    def stage(self, position: int) -> int:
        """⌊log₂(p + 1)⌋."""
        return (position + 1).bit_length() - 1

    def ends(self, first: int, end: int) -> list[int]:
        """The token counts in (first, end] with which a stage begins."""
        return [1 << s for s in range(first.bit_length(), end.bit_length()) if first < 1 << s <= end]

    def turn(self, keys: mx.array) -> mx.array:
        """The keys."""
        return keys

    unturn = turn

    def measure(self, keys: mx.array) -> mx.array:
        """What is summed."""
        return keys

    def value(self, total: mx.array, count: int) -> mx.array:
        """The mean."""
        return total / count

    def remove(self, keys: mx.array, mean: mx.array) -> mx.array:
        """k − μ."""
        return keys - mean

    def add(self, keys: mx.array, mean: mx.array) -> mx.array:
        """k + μ."""
        return keys + mean


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KeyScale:
    """Rotated keys over the width of their dimensions, from the first `tokens` on."""

    tokens: int
    turn: Turn
    unturn: Turn
    name: str = "kcal"
    staged: bool = True
    neutral: float = 1.0

    @property
    def warmup(self) -> int:
        """The tokens it is learnt from."""
        return self.tokens

    def __deepcopy__(self, memo: Any) -> KeyScale:
        return self  # a value; a copied cache shares it

    def start(self) -> Stages:
        """No scales yet."""
        return Stages(self)

    def stage(self, position: int) -> int:
        """0 before calibration, 1 after."""
        return int(position + 1 >= self.tokens)

    def ends(self, first: int, end: int) -> list[int]:
        """The token count, if in (first, end], with which calibration ends."""
        return [self.tokens] if first < self.tokens <= end else []

    def measure(self, keys: mx.array) -> mx.array:
        """What is summed."""
        return mx.square(keys)

    def value(self, total: mx.array, count: int) -> mx.array:
        """σ (B, H, 1, D)."""
        overall = mx.mean(total, axis=-1, keepdims=True)
        width = mx.sqrt(total / mx.where(overall == 0, 1.0, overall))
        kept = mx.minimum(mx.maximum(width, _NARROWEST), _WIDEST)
        uneven = mx.max(mx.abs(kept - 1.0), axis=-1, keepdims=True) >= _EVEN
        return mx.where(uneven, kept, 1.0)

    def remove(self, keys: mx.array, width: mx.array) -> mx.array:
        """y / σ."""
        return keys / width

    def add(self, keys: mx.array, width: mx.array) -> mx.array:
        """y · σ."""
        return keys * width


def key_scale(tokens: int, turn: Turn, unturn: Turn) -> KeyScale:
    """Raises: KVUnsupportedError for fewer tokens than say anything about a dimension."""
    if tokens < FEWEST:
        raise KVUnsupportedError(
            f"kcal={tokens} cannot act: fewer than {FEWEST} tokens say too little about a dimension",
            hint=f"use kcal={FEWEST} or more, such as kcal=128",
        )
    return KeyScale(tokens=tokens, turn=turn, unturn=unturn)
