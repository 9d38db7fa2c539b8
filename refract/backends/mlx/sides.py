"""One side (keys or values) of one layer's sequences of equal length, as values that were rounded when written.

What `retention` keeps is in f16 and everything between is coded; codecs that group tokens code whole groups only, the
first of which begins behind the sink.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from refract.backends.mlx.codecs.base import Codec, group_of
from refract.backends.mlx.fused import fused_roundtrip
from refract.backends.mlx.key_modifiers import KeyModifier, KeyState, Start, reduced, restored
from refract.backends.mlx.key_stages import Stages
from refract.backends.mlx.retention import EVERYTHING, Retention
from refract.errors import KVUnsupportedError

STEP = 256  # positions by which storage grows


@dataclass(frozen=True, slots=True, kw_only=True)
class SideSpec:
    """How a side is stored; `fused` where the codec's work on a single token is to be compiled."""

    codec: Codec
    retention: Retention = EVERYTHING
    modifiers: tuple[KeyModifier, ...] = ()
    fused: bool = False

    def __deepcopy__(self, memo: Any) -> SideSpec:
        return self  # a value; a copied cache shares it

    @property
    def group(self) -> int:
        """Tokens that the codec codes together."""
        return group_of(self.codec)

    @property
    def keeps_raw(self) -> bool:
        """Whether a token may be written in f16 and coded later."""
        return self.codec.bits_per_value < 16 and (not self.retention.idle or self.group > 1)

    @property
    def staged(self) -> bool:
        """Whether a modifier learns from the keys."""
        return any(modifier.staged for modifier in self.modifiers)

    @property
    def sink(self) -> int:
        """Tokens from the first on that are never coded."""
        return self.retention.sink if self.keeps_raw else 0

    def coded(self, old: int, start: int, count: int) -> int:
        """How far a side that is coded up to `old` is coded once `count` tokens have joined `start`."""
        return self._whole(old, self.retention.compressed(start, count))

    def settled(self, old: int, held: int) -> int:
        """The same when the newest of `held` tokens came alone."""
        return self._whole(old, self.retention.settled(held))

    def _whole(self, old: int, wanted: int) -> int:
        first = max(old, min(self.retention.sink, wanted))
        return first + max(0, wanted - first) // self.group * self.group

    def uncut(self, coded: int, length: int) -> int:
        """How far a side that is coded up to `coded` stays so when only `length` tokens are left: whole groups."""
        whole = min(coded, length)
        return whole - max(0, whole - self.sink) % self.group

    def fuses(self, x: mx.array) -> bool:
        """Whether `x` (B, H, n, D) is written by a compiled function."""
        return self.fused and x.shape[2] == 1

    def refuse_gaps(self) -> None:
        """Raises: KVUnsupportedError where what is stored of a token depends on others, which may not go missing."""
        if self.staged or self.group > 1:
            name = self.codec.name if self.group > 1 else next(m.name for m in self.modifiers if m.staged)
            raise KVUnsupportedError(
                f"tokens cannot be taken out of a cache under {name}, which stores a token by what others are like",
                hint=f"leave {name} or the eviction out",
            )

    def through(self, x: mx.array, states: Sequence[KeyState], start: Start) -> mx.array:
        """What reading `x` (B, H, n, D), tokens from `start` on, gives back."""
        if not states:
            return (fused_roundtrip(self.codec) if self.fuses(x) else self.codec.roundtrip)(x)
        left = self.codec.roundtrip(reduced(states, x, start)).astype(mx.float32)
        return restored(states, left, start).astype(x.dtype)


def half(x: mx.array) -> mx.array:
    """`x` as f16 keeps it."""
    return x.astype(mx.float16).astype(x.dtype)


def grown(store: mx.array | None, like: mx.array, needed: int, step: int = STEP) -> mx.array:
    """`store` (B, H, capacity, …) with room for `needed` places along axis 2, new ones zero."""
    have = 0 if store is None else store.shape[2]
    if store is not None and needed <= have:
        return store
    room = -(-needed // step) * step - have
    blank = mx.zeros((*like.shape[:2], room, *like.shape[3:]), dtype=like.dtype)
    return blank if store is None else mx.concatenate([store, blank], axis=2)


class DenseSide:
    """Values (B, H, n, D) as they are read."""

    def __init__(self, spec: SideSpec) -> None:
        self.spec = spec
        self.states = [modifier.start() for modifier in spec.modifiers]
        self.length = self.coded = 0
        self.values: mx.array | None = None

    def append(self, x: mx.array) -> mx.array:
        """All values so far, `x` (B, H, n, D) included."""
        start, end = self.length, self.length + x.shape[2]
        self.values = grown(self.values, x, end)
        self.length = end
        if not self.spec.keeps_raw:
            self.values[..., start:end, :] = self.spec.through(x, self.states, start)
            self.coded = end
        else:
            self.values[..., start:end, :] = half(x)
            self._code(self.spec.coded(self.coded, start, x.shape[2]))
        return self.values[..., :end, :]

    def settle(self) -> None:
        """Codes all that is to be when single tokens come next."""
        if self.spec.keeps_raw:
            self._code(self.spec.settled(self.coded, self.length))

    def _code(self, target: int) -> None:
        if self.values is None:
            return
        if (sunk := min(target, self.spec.sink)) > self.coded:
            reduced(self.states, self.values[..., self.coded : sunk, :], self.coded)  # they learn from every token
            self.coded = sunk
        if target > self.coded:
            raw = self.values[..., self.coded : target, :]
            self.values[..., self.coded : target, :] = self.spec.through(raw, self.states, self.coded)
            self.coded = target

    def trim(self, length: int) -> None:
        """Forgets what is beyond `length` tokens."""
        self.length, self.coded = length, self.spec.uncut(self.coded, length)

    def keep(self, places: Sequence[int]) -> None:
        """Removes every token but those at ascending `places`. Raises: KVUnsupportedError as the spec does."""
        self.spec.refuse_gaps()
        if self.values is not None:
            self.values = self.values[:, :, mx.array(places)]
        self.coded = sum(place < self.coded for place in places)
        self.length = len(places)

    @property
    def arrays(self) -> list[mx.array]:
        """Everything held."""
        return [a for a in (self.values, *state_arrays(self.states)) if a is not None]

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(array.nbytes for array in self.arrays)

    def save(self) -> list[Any]:
        """What `load` needs: numbers and arrays."""
        held = None if self.values is None else self.values[:, :, : self.length]
        return [self.length, self.coded, held, *state_arrays(self.states)]

    def load(self, saved: Sequence[Any]) -> None:
        """Takes over what `save` gave of another."""
        self.length, self.coded, self.values, *rest = saved
        load_states(self.states, rest)


def state_arrays(states: Sequence[KeyState]) -> list[mx.array]:
    """What the modifiers keep."""
    return [array for state in states for array in state.arrays]


def load_states(states: Sequence[KeyState], arrays: Sequence[mx.array]) -> None:
    """Gives the modifiers back what `state_arrays` was told of them."""
    left = list(arrays)
    for state in states:
        if isinstance(state, Stages) and left:
            state.arrays, left = left[:2], left[2:]
