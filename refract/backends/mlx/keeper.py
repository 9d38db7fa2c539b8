"""What holds the sequences that go through a model: caches, and what happens to them between forward passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import mlx.core as mx

from refract.backends.mlx.cache import LayerSpec, RowCache, Rows, SequenceCache
from refract.work import TokenIds


class OpenSequence(Protocol):
    """One sequence on its own."""

    @property
    def caches(self) -> Sequence[Any]:
        """A cache a layer, as attention takes them."""

    def pass_end(self, start: int, chunk: int) -> int:
        """Where a pass of up to `chunk` tokens from `start` has to end at the latest."""

    def passed(self, count: int) -> None:
        """Called after a pass of `count` tokens was evaluated."""


class OpenRows(Protocol):
    """A batch of a fixed number of rows."""

    @property
    def caches(self) -> Sequence[Any]:
        """A cache a layer, as attention takes them."""

    def insert(self, row: int, sequence: Any, length: int) -> None:
        """Puts a prefilled sequence of `length` tokens, of the same keeper, in `row`; it replaces what was there."""

    def before(self) -> None:
        """Called before every pass."""

    def passed(self, rows: Sequence[int]) -> None:
        """Called after a pass that gave each of `rows`, the occupied ones, one token."""

    def clear(self, row: int) -> None:
        """Frees a row."""


class Keeper(Protocol):
    """Opens sequences and batches; a session has one."""

    @property
    def specs(self) -> Sequence[LayerSpec]:
        """How every layer stores its cache."""

    def sequence(self, tokens: TokenIds) -> OpenSequence:
        """An empty one, for a sequence that begins with `tokens`."""

    def rows(self, count: int) -> OpenRows:
        """An empty batch."""


def new_caches(specs: Sequence[LayerSpec]) -> list[SequenceCache]:
    """One empty cache a layer."""
    return [SequenceCache(spec) for spec in specs]


class PlainSequence:
    """A sequence whose caches only grow."""

    def __init__(self, specs: Sequence[LayerSpec]) -> None:
        self.caches = new_caches(specs)

    def pass_end(self, start: int, chunk: int) -> int:
        """As `OpenSequence` says: a whole chunk."""
        return start + chunk

    def passed(self, count: int) -> None:
        """Nothing happens between passes."""


class PlainRows:
    """A batch whose caches only grow."""

    def __init__(self, specs: Sequence[LayerSpec], count: int) -> None:
        self.places = Rows(count)
        self.caches = [RowCache(spec, self.places) for spec in specs]

    def insert(self, row: int, sequence: Any, length: int) -> None:
        """As `OpenRows` says."""
        self.places.lengths[row] = length
        for cache, filled in zip(self.caches, sequence.caches, strict=True):
            cache.insert(row, filled)

    def before(self) -> None:
        """As `OpenRows` says."""
        self.places.refresh()

    def passed(self, rows: Sequence[int]) -> None:
        """As `OpenRows` says."""
        self.places.advance(rows)

    def clear(self, row: int) -> None:
        """As `OpenRows` says."""
        self.places.lengths[row] = 0


class PlainKeeper:
    """Keeps everything that every layer was given."""

    def __init__(self, specs: Sequence[LayerSpec]) -> None:
        self.specs = specs

    def sequence(self, tokens: TokenIds) -> PlainSequence:
        """As `Keeper` says."""
        return PlainSequence(self.specs)

    def rows(self, count: int) -> PlainRows:
        """As `Keeper` says."""
        return PlainRows(self.specs, count)


def states(sequence: OpenSequence) -> list[tuple[mx.array | None, mx.array | None]]:
    """Every layer's arrays, for evaluation."""
    return [cache.state for cache in sequence.caches]
