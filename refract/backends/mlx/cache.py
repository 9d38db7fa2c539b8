"""KV caches that store what a codec leaves of keys and values, for attention that follows mlx-lm's contract.

Quantise–dequantise on write: the arrays hold exactly what a packed cache would read back, so attention, masks, sinks
and every head dimension work unchanged. There is no attribute `bits`, which would send attention to MLX's affine path.

A sequence's keys start at index 0 of its row, whatever else is in the batch; unused positions hold zeros and are
masked. Trailing zeros change no bit of the result, so an answer does not depend on its neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
from mlx_lm.models.base import create_causal_mask

from refract.backends.mlx.codecs.base import Codec
from refract.backends.mlx.key_modifiers import KeyModifier
from refract.backends.mlx.retention import EVERYTHING, Retention
from refract.backends.mlx.rowsides import RowSide
from refract.backends.mlx.sides import DenseSide, SideSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """How one layer stores its cache: a codec a side, and the sliding window in tokens where the layer has one.

    `modifiers` act on keys before they are coded and are undone when they are read; `retention` says which tokens of a
    compressed side stay in 16 bits.
    """

    k: Codec
    v: Codec
    window: int | None = None
    modifiers: tuple[KeyModifier, ...] = ()
    retention: Retention = EVERYTHING

    @property
    def sides(self) -> tuple[SideSpec, SideSpec]:
        """(K, V)."""
        return (
            SideSpec(codec=self.k, retention=self.retention, modifiers=self.modifiers),
            SideSpec(codec=self.v, retention=self.retention),
        )

    @property
    def compressed(self) -> bool:
        """Whether a side takes fewer than 16 bits a value."""
        return min(self.k.bits_per_value, self.v.bits_per_value) < 16


class SequenceCache:
    """One layer's cache of sequences of equal length: keys and values (B, H, n, D)."""

    def __init__(self, spec: LayerSpec) -> None:
        self.spec = spec
        self._k, self._v = map(DenseSide, spec.sides)

    @property
    def offset(self) -> int:
        """Tokens held."""
        return self._k.length

    @property
    def keys(self) -> mx.array | None:
        """Keys (B, H, capacity, D) as they are read."""
        return self._k.values

    @property
    def values(self) -> mx.array | None:
        """Values (B, H, capacity, D) as they are read."""
        return self._v.values

    @property
    def sides(self) -> tuple[DenseSide, DenseSide]:
        """(K, V)."""
        return self._k, self._v

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """All keys and values so far, the new ones included, as the codecs store them."""
        return self._k.append(keys), self._v.append(values)

    def make_mask(
        self,
        N: int,  # noqa: N803
        return_array: bool = False,
        window_size: int | None = None,  # all three are mlx-lm's own names
    ) -> mx.array | str | None:
        """The attention mask of the next N tokens, as mlx-lm's own caches make it."""
        window = window_size or self.spec.window
        if window is not None:
            return create_causal_mask(N, self.offset, window_size=window)
        if N == 1:
            return None
        return create_causal_mask(N, self.offset) if return_array else "causal"

    @property
    def state(self) -> tuple[mx.array | None, mx.array | None]:
        """The arrays, for evaluation."""
        return self.keys, self.values

    def size(self) -> int:
        """Tokens held."""
        return self.offset

    def empty(self) -> bool:
        """Whether nothing was written yet."""
        return self.keys is None

    def is_trimmable(self) -> bool:
        """Whether the newest tokens can be dropped, which is so unless a modifier has learnt from them."""
        return not self._k.spec.staged

    def trim(self, n: int) -> int:
        """Drops the newest `n` tokens, as many as there are; returns how many."""
        n = min(n, self.offset)
        for side in self.sides:
            side.trim(side.length - n)
        return n

    def keep(self, places: Sequence[int]) -> None:
        """Removes every token but those at `places`, which are ascending."""
        for side in self.sides:
            side.keep(places)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays, which hold dequantised values."""
        return sum(a.nbytes for a in self.state if a is not None)


class Rows:
    """Where each row of a batch of fixed size stands; shared by the caches of all layers."""

    def __init__(self, count: int) -> None:
        self.index = mx.arange(count)
        self.lengths = [0] * count
        self.refresh()

    def refresh(self) -> None:
        """Makes the arrays that one forward pass reads: offsets (B,) and the span of positions it may attend to."""
        self.offsets = mx.array(self.lengths)
        self.span = -(-(max(self.lengths) + 1) // 64) * 64

    def advance(self, rows: Sequence[int]) -> None:
        """Notes that each of `rows` got one token."""
        for row in rows:
            self.lengths[row] += 1


class RowCache:
    """One layer's cache of a batch whose rows have lengths of their own and each take one token a pass."""

    def __init__(self, spec: LayerSpec, rows: Rows) -> None:
        self.spec = spec
        self.rows = rows
        self._k, self._v = (RowSide(side, len(rows.lengths)) for side in spec.sides)

    @property
    def offset(self) -> mx.array:
        """Each row's next position (B,), for RoPE."""
        return self.rows.offsets

    @property
    def keys(self) -> mx.array | None:
        """Keys (B, H, capacity, D) as they are read."""
        return self._k.values

    @property
    def values(self) -> mx.array | None:
        """Values (B, H, capacity, D) as they are read."""
        return self._v.values

    def insert(self, row: int, sequence: SequenceCache) -> None:
        """Puts a prefilled sequence of batch size 1 in `row`, replacing whatever was there."""
        for own, joining in zip((self._k, self._v), sequence.sides, strict=True):
            own.insert(row, joining)

    def keep(self, row: int, places: Sequence[int]) -> None:
        """Moves what is at ascending `places` of a row to its beginning; the row's length is the caller's."""
        for side in (self._k, self._v):
            side.keep(row, places)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Keys and values (B, H, span, D) after each row's one new token is stored at its own position."""
        lengths, span = self.rows.lengths, self.rows.span
        return self._k.append(keys, lengths, span), self._v.append(values, lengths, span)

    def make_mask(
        self,
        N: int,  # noqa: N803
        return_array: bool = False,
        window_size: int | None = None,  # all three are mlx-lm's own names
    ) -> mx.array:
        """Which positions each row attends to, (B, 1, 1, span)."""
        if N != 1:
            raise ValueError(f"a row cache takes one token a pass, not {N}")
        positions, last = mx.arange(self.rows.span)[None], self.rows.offsets[:, None]
        mask = positions <= last
        if window := window_size or self.spec.window:
            mask = mask & (positions > last - window)
        return mask[:, None, None]

    @property
    def state(self) -> tuple[mx.array | None, mx.array | None]:
        """The arrays, for evaluation."""
        return self.keys, self.values
