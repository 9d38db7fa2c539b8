"""One side of one layer's sequences of equal length, as the packed codes that its codec stores.

Held are codes, norms and scales, what `retention` keeps in f16, and up to `working` tokens a copy of the values as they
are read. Longer sequences have none: every pass decodes a side anew, which lasts until its layer's attention is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from refract.backends.mlx.fused import fused_write
from refract.backends.mlx.key_modifiers import reduced, restored
from refract.backends.mlx.packing import Shapes, decode_packed, pack
from refract.backends.mlx.sides import STEP, SideSpec, grown, load_states, state_arrays


class PackedSide:
    """`parts` hold tokens [sink, coded) from place 0 on; `sink` and `tail` what lies before and behind, in f16."""

    def __init__(self, spec: SideSpec, working: int) -> None:
        self.spec, self.working = spec, working
        self.states = [modifier.start() for modifier in spec.modifiers]
        self.length = self.coded = 0
        self.parts: list[mx.array] = []
        self.shapes: Shapes = ()
        self.rates: tuple[int, ...] = ()  # tokens that one place of a part stands for
        self.sink: mx.array | None = None
        self.tail: mx.array | None = None
        self.copy: mx.array | None = None
        self._dtype = "float32"  # by name, which a copy of a cache can take along

    @property
    def dtype(self) -> mx.Dtype:
        """The dtype of values as they are read."""
        dtype: mx.Dtype = getattr(mx, self._dtype)
        return dtype

    def append(self, x: mx.array) -> mx.array:
        """All values so far, `x` (B, H, n, D) included."""
        start, count = self.length, x.shape[2]
        self._dtype, self.length = str(x.dtype).rpartition(".")[2], start + count
        target = self.spec.coded(self.coded, start, count) if self.spec.keeps_raw else self.length
        return self._take(x, target)

    def settle(self) -> None:
        """Codes all that is to be when single tokens come next."""
        if self.spec.keeps_raw and self.tail is not None:
            self._take(self.tail[:, :, :0].astype(self.dtype), self.spec.settled(self.coded, self.length))

    def _take(self, x: mx.array, target: int) -> mx.array:
        """All values, once `x` has joined and everything up to `target` is coded."""
        done = self.coded
        pending = self._pending(x)
        sunk = max(0, min(target, self.spec.sink) - done)
        if sunk:
            reduced(self.states, pending[:, :, :sunk], done)  # they learn from every token
            more = pending[:, :, :sunk].astype(mx.float16)
            self.sink = more if self.sink is None else mx.concatenate([self.sink, more], axis=2)
        left = [pending[:, :, :sunk]]
        if target > done + sunk:
            left.append(self._code(pending[:, :, sunk : target - done], done + sunk))
        self.coded = max(done, target)
        rest = pending[:, :, self.coded - done :]
        self.tail = rest.astype(mx.float16) if self.spec.keeps_raw else None
        return self._read([*left, rest], done)

    def _pending(self, x: mx.array) -> mx.array:
        """What is not coded yet, `x` included, in the dtype of values."""
        if not self.spec.keeps_raw:
            return x
        raw = x.astype(mx.float16)
        return (raw if self.tail is None else mx.concatenate([self.tail, raw], axis=2)).astype(self.dtype)

    def _code(self, x: mx.array, start: int) -> mx.array:
        """What is read of `x` (B, H, n, D), tokens from `start` on, once it is stored."""
        given = reduced(self.states, x, start) if self.states else x
        if self.shapes and self.spec.fuses(given):
            decoded, *packed = fused_write(self.spec.codec)(given)
        else:
            parts = self.spec.codec.encode(given)
            self.shapes = tuple(part.shape[3:] for part in parts)
            packed, decoded = [*pack(self.spec.codec, parts)], self.spec.codec.decode(*parts)
        self.rates = tuple(x.shape[2] // part.shape[2] for part in packed)
        olds: Sequence[mx.array | None] = self.parts or [None] * len(packed)
        self.parts = [
            _put(old, part, (start - self.spec.sink) // rate, max(1, STEP // rate))
            for old, part, rate in zip(olds, packed, self.rates, strict=True)
        ]
        return self._decoded(decoded, start)

    def _decoded(self, left: mx.array, start: int) -> mx.array:
        """What is read of what the codec left of tokens from `start` on."""
        if self.states:
            left = restored(self.states, left.astype(mx.float32), start)
        return left.astype(self.dtype)

    def _read(self, newest: Sequence[mx.array], done: int) -> mx.array:
        """All values; `newest` are those from `done` on as they are read."""
        if self.length > self.working:
            self.copy = None
            return self.values
        if self.copy is None and done:
            self.copy = grown(None, self.values, self.length)
            self.copy[:, :, : self.length] = self.values
        else:
            fresh = mx.concatenate(list(newest), axis=2)
            self.copy = grown(self.copy, fresh, self.length)
            self.copy[:, :, done : self.length] = fresh.astype(self.dtype)
        return self.copy[:, :, : self.length]

    @property
    def values(self) -> mx.array:
        """All values (B, H, n, D), decoded."""
        pieces = [piece.astype(self.dtype) for piece in (self.sink,) if piece is not None]
        count = self.coded - self.spec.sink
        if count > 0:
            held = tuple(part[:, :, : count // rate] for part, rate in zip(self.parts, self.rates, strict=True))
            pieces.append(self._decoded(decode_packed(self.spec.codec, held, self.shapes), self.spec.sink))
        if self.tail is not None:
            pieces.append(self.tail.astype(self.dtype))
        return mx.concatenate(pieces, axis=2)

    def trim(self, length: int) -> None:
        """Forgets what is beyond `length` tokens; of a group that is cut, what it was read as stays, in f16."""
        whole = self.spec.uncut(self.coded, length)
        if self.spec.keeps_raw:
            self.tail = self.values[:, :, whole:length].astype(mx.float16)
            self.sink = None if self.sink is None else self.sink[:, :, :whole]
        self.length, self.coded = length, whole

    @property
    def arrays(self) -> list[mx.array]:
        """Everything held."""
        own = (*self.parts, self.sink, self.tail, self.copy, *state_arrays(self.states))
        return [array for array in own if array is not None]

    @property
    def nbytes(self) -> int:
        """Bytes held, the copy of short sequences included."""
        return sum(array.nbytes for array in self.arrays)

    @property
    def coded_bytes(self) -> int:
        """Bytes of the codes, norms and scales of the tokens that are coded, without room for more."""
        count = max(0, self.coded - self.spec.sink)
        return sum(part[:, :, : count // rate].nbytes for part, rate in zip(self.parts, self.rates, strict=True))

    def save(self) -> list[Any]:
        """What `load` needs: numbers and arrays."""
        count = max(0, self.coded - self.spec.sink)
        parts = [part[:, :, : count // rate] for part, rate in zip(self.parts, self.rates, strict=True)]
        shapes = " ".join("x".join(map(str, shape)) for shape in self.shapes)
        return [
            self.length,
            self.coded,
            self._dtype,
            shapes,
            self.sink,
            self.tail,
            len(parts),
            *parts,
            *state_arrays(self.states),
        ]

    def load(self, saved: Sequence[Any]) -> None:
        """Takes over what `save` gave of another."""
        self.length, self.coded, self._dtype, shapes, self.sink, self.tail, count, *arrays = saved
        self.parts, self.copy = list(arrays[:count]), None
        tokens = max(0, self.coded - self.spec.sink)
        self.rates = tuple(tokens // part.shape[2] for part in self.parts)
        self.shapes = tuple(tuple(map(int, shape.split("x"))) for shape in shapes.split())
        load_states(self.states, arrays[count:])


def _put(store: mx.array | None, part: mx.array, place: int, step: int) -> mx.array:
    """`store` with `part` from `place` along axis 2 on."""
    end = place + part.shape[2]
    store = grown(store, part, end, step)
    store[:, :, place:end] = part
    return store
