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
from refract.backends.mlx.key_bias import Shift
from refract.backends.mlx.retention import EVERYTHING, Retention

_STEP = 256  # positions by which storage grows


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """How one layer stores its cache: a codec a side, and the sliding window in tokens where the layer has one.

    `key_shift` is taken off keys before they are stored and put back when they are read; `retention` says which tokens
    of a compressed side stay in 16 bits.
    """

    k: Codec
    v: Codec
    window: int | None = None
    key_shift: Shift | None = None
    retention: Retention = EVERYTHING

    @property
    def compressed(self) -> bool:
        """Whether a side takes fewer than 16 bits a value."""
        return min(self.k.bits_per_value, self.v.bits_per_value) < 16

    def stored_keys(self, keys: mx.array, first: int | mx.array) -> mx.array:
        """What reading keys (B, H, n, D) back gives; `first` is the position of the first, or that of each row."""
        if self.key_shift is None:
            return self.k.roundtrip(keys)
        shift = self.key_shift(first, keys.shape[2])
        return (self.k.roundtrip(keys - shift) + shift).astype(keys.dtype)

    def raw(self, codec: Codec, x: mx.array) -> mx.array:
        """What is kept of `x` before `codec` compresses it: 16 bits, or what the codec leaves where it does not."""
        return x.astype(mx.float16).astype(x.dtype) if codec.bits_per_value < 16 else codec.roundtrip(x)


def _grown(store: mx.array | None, like: mx.array, needed: int) -> mx.array:
    """`store` (B, H, capacity, D) with room for `needed` positions, new ones zero."""
    have = 0 if store is None else store.shape[2]
    if store is not None and needed <= have:
        return store
    batch, heads, _, dim = like.shape
    blank = mx.zeros((batch, heads, -(-needed // _STEP) * _STEP - have, dim), dtype=like.dtype)
    return blank if store is None else mx.concatenate([store, blank], axis=2)


class SequenceCache:
    """One layer's cache of sequences of equal length: keys and values (B, H, n, D)."""

    def __init__(self, spec: LayerSpec) -> None:
        self.spec = spec
        self.offset = 0
        self.keys: mx.array | None = None
        self.values: mx.array | None = None
        self._compressed = 0  # tokens from the first on that are no longer raw, where some are kept so

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """All keys and values so far, the new ones included, as the codecs store them."""
        start, end, spec = self.offset, self.offset + keys.shape[2], self.spec
        self.keys = _grown(self.keys, keys, end)
        self.values = _grown(self.values, values, end)
        if spec.retention.idle:
            self.keys[..., start:end, :] = spec.stored_keys(keys, start)
            self.values[..., start:end, :] = spec.v.roundtrip(values)
        else:
            self.keys[..., start:end, :] = spec.raw(spec.k, keys)
            self.values[..., start:end, :] = spec.raw(spec.v, values)
            self._compress(spec.retention.compressed(start, end - start))
        self.offset = end
        return self.keys[..., :end, :], self.values[..., :end, :]

    def settle(self) -> None:
        """Compresses all that is to be when single tokens come next."""
        if not self.spec.retention.idle:
            self._compress(self.spec.retention.settled(self.offset))

    def _compress(self, count: int) -> None:
        first = max(self._compressed, self.spec.retention.sink)
        if count > first and self.keys is not None and self.values is not None:
            part = slice(first, count)
            self.keys[..., part, :] = self.spec.stored_keys(self.keys[..., part, :], first)
            self.values[..., part, :] = self.spec.v.roundtrip(self.values[..., part, :])
            self._compressed = count

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
        """Positions are never rewritten, so any number of the newest can be dropped."""
        return True

    def trim(self, n: int) -> int:
        """Drops the newest `n` tokens, as many as there are; returns how many."""
        n = min(n, self.offset)
        self.offset -= n
        self._compressed = min(self._compressed, self.offset)
        return n

    def keep(self, places: Sequence[int]) -> None:
        """Removes every token but those at `places`, which are ascending."""
        index = mx.array(places)
        if self.keys is not None and self.values is not None:
            self.keys, self.values = self.keys[:, :, index], self.values[:, :, index]
        self.offset = len(places)

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
        self.keys: mx.array | None = None
        self.values: mx.array | None = None

    @property
    def offset(self) -> mx.array:
        """Each row's next position (B,), for RoPE."""
        return self.rows.offsets

    def insert(self, row: int, sequence: SequenceCache) -> None:
        """Puts a prefilled sequence of batch size 1 in `row`, replacing whatever was there."""
        sequence.settle()
        for name, new in (("keys", sequence.keys), ("values", sequence.values)):
            if new is None:
                raise ValueError("only a prefilled sequence can join a batch")
            store = getattr(self, name)
            count = len(self.rows.lengths)
            like = mx.zeros((count, new.shape[1], 0, new.shape[3]), dtype=new.dtype) if store is None else store
            store = _grown(store, like, new.shape[2])
            store[row] = mx.pad(new[0], [(0, 0), (0, store.shape[2] - new.shape[2]), (0, 0)])
            setattr(self, name, store)

    def keep(self, row: int, places: Sequence[int]) -> None:
        """Moves what is at ascending `places` of a row to its beginning; the row's length is the caller's."""
        index = mx.array(places)
        for name in ("keys", "values"):
            store = getattr(self, name)
            kept = store[row][:, index]
            store[row] = mx.pad(kept, [(0, 0), (0, store.shape[2] - len(places)), (0, 0)])
            setattr(self, name, store)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Keys and values (B, H, span, D) after each row's one new token is stored at its own position."""
        span = self.rows.span
        self.keys = _grown(self.keys, keys, span)
        self.values = _grown(self.values, values, span)
        at, spec = (self.rows.index, slice(None), self.rows.offsets), self.spec
        if spec.retention.idle:
            self.keys[at] = spec.stored_keys(keys, self.rows.offsets)[:, :, 0]
            self.values[at] = spec.v.roundtrip(values)[:, :, 0]
        else:
            self.keys[at] = spec.raw(spec.k, keys)[:, :, 0]
            self.values[at] = spec.raw(spec.v, values)[:, :, 0]
            self._compress_leaving()
        return self.keys[..., :span, :], self.values[..., :span, :]

    def _compress_leaving(self) -> None:
        """Compresses the one token of each row that is no longer among the newest."""
        leaving = self.rows.offsets - self.spec.retention.residual
        due = (leaving >= self.spec.retention.sink)[:, None, None, None]
        position = mx.maximum(leaving, 0)
        at = (self.rows.index, slice(None), position)
        for store, stored in (
            (self.keys, lambda x: self.spec.stored_keys(x, position)),
            (self.values, self.spec.v.roundtrip),
        ):
            assert store is not None
            old = store[at][:, :, None]
            store[at] = mx.where(due, stored(old), old)[:, :, 0]

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
