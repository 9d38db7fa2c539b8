"""Caches that give up tokens between forward passes.

Storage holds what is left, in order and without gaps, while attention is told the true position of the next token:
what is kept stays rotated as it was, and a mask over storage places is the causal mask of what is held. Layers with a
sliding window keep caches of their own, from which nothing is taken.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from refract.backends.mlx.cache import LayerSpec, RowCache, Rows, SequenceCache
from refract.backends.mlx.eviction import Held, Policy, Positions, Scores
from refract.backends.mlx.hidden import to_numpy
from refract.backends.mlx.rotary import Rotary
from refract.backends.mlx.triattention import QueryMeans, head_scores, joint_scores
from refract.work import TokenIds


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Expectation:
    """How scores are made: `rotary` a layer that is evicted from, queries of the first `tokens` tokens of a sequence.

    The others are the options of `head_scores` and `joint_scores`.
    """

    rotary: Sequence[Rotary]
    tokens: int
    largest: bool = False
    union: bool = False
    normalised: bool = False


class Watched:
    """A layer's cache as attention sees it: the true `offset` outside, storage places inside.

    `queries` are those of the last pass, where a reader leaves them.
    """

    def __init__(self, inner: SequenceCache | RowCache) -> None:
        self.inner = inner
        self.queries: mx.array | None = None

    @property
    def spec(self) -> LayerSpec:
        """How the layer stores its cache."""
        return self.inner.spec

    @property
    def state(self) -> tuple[mx.array | None, mx.array | None]:
        """The arrays, for evaluation."""
        return self.inner.state

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """All that is held, the new tokens included."""
        return self.inner.update_and_fetch(keys, values)

    def make_mask(
        self,
        N: int,  # noqa: N803
        return_array: bool = False,
        window_size: int | None = None,  # all three are mlx-lm's own names
    ) -> mx.array | str | None:
        """The mask of the next N tokens over what is held."""
        return self.inner.make_mask(N, return_array=return_array, window_size=window_size)


class HeldSequence(Watched):
    """One layer's cache of one sequence."""

    inner: SequenceCache

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__(SequenceCache(spec))
        self.offset = 0

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """As the cache inside, and counts the tokens."""
        self.offset += keys.shape[2]
        return super().update_and_fetch(keys, values)

    def keep(self, places: Positions) -> None:
        """Removes every place but these, which are ascending."""
        self.inner.keep(places.tolist())


class HeldRows(Watched):
    """One layer's cache of a batch; `seen` counts each row's tokens."""

    inner: RowCache

    def __init__(self, spec: LayerSpec, places: Rows, seen: Rows) -> None:
        super().__init__(RowCache(spec, places))
        self._seen = seen

    @property
    def offset(self) -> mx.array:
        """Each row's next position (B,), for RoPE."""
        return self._seen.offsets


class Tenant:
    """One sequence between passes: the true positions it holds, and its queries' means a layer."""

    def __init__(self, key: int, layers: int) -> None:
        self.key = key
        self.positions: Positions = np.arange(0)
        self.seen = 0
        self.means: list[QueryMeans | None] = [None] * layers

    def came(self, count: int) -> None:
        """Notes `count` new tokens."""
        self.positions = np.append(self.positions, np.arange(self.seen, self.seen + count))
        self.seen += count


class EvictingKeeper:
    """Opens sequences and batches from which `policy` evicts; `expectation` where it looks at scores."""

    def __init__(self, specs: Sequence[LayerSpec], policy: Policy, expectation: Expectation | None = None) -> None:
        self.specs, self.policy, self.expectation = specs, policy, expectation
        self.layers = tuple(layer for layer, spec in enumerate(specs) if spec.window is None)

    def sequence(self, tokens: TokenIds) -> EvictingSequence:
        """As `Keeper` says; whatever is random about the sequence follows from `tokens`."""
        return EvictingSequence(self, Tenant(zlib.crc32(np.array(tokens, np.int64).tobytes()), len(self.layers)))

    def rows(self, count: int) -> EvictingRows:
        """As `Keeper` says."""
        return EvictingRows(self, count)

    def observe(self, tenant: Tenant, caches: Sequence[Watched], row: int, count: int) -> None:
        """Adds the queries of the pass of `count` tokens that ends a sequence's seen ones to its means."""
        first = tenant.seen - count
        if self.expectation is None or first >= self.expectation.tokens:
            return
        for number, (cache, rotary) in enumerate(zip(caches, self.expectation.rotary, strict=True)):
            if cache.queries is None:
                raise RuntimeError("no reader left the queries of this pass")
            queries = to_numpy(cache.queries[row, :, -count:])[:, : self.expectation.tokens - first]
            means = tenant.means[number] or QueryMeans.none(len(queries), len(rotary.real))
            tenant.means[number] = means.with_queries(queries, first, rotary)

    def kept(self, tenant: Tenant, caches: Sequence[Watched], row: int) -> Positions | None:
        """The places of `row` that stay, None where all do; `tenant` is brought up to date."""

        def scores() -> Scores:
            return self._scores(tenant, caches, row)

        held = Held(positions=tenant.positions, seen=tenant.seen, key=tenant.key)
        places = self.policy.kept(held, scores)
        if len(places) == len(tenant.positions):
            return None
        tenant.positions = tenant.positions[places]
        return places

    def _scores(self, tenant: Tenant, caches: Sequence[Watched], row: int) -> Scores:
        own = self.expectation
        if own is None:
            raise RuntimeError("the policy asks for scores, and none are made")
        count, last = len(tenant.positions), tenant.seen - 1
        by_layer = (
            head_scores(to_numpy(_keys(cache)[row, :, :count]), means, rotary, last=last, largest=own.largest)
            for cache, means, rotary in zip(caches, tenant.means, own.rotary, strict=True)
            if means is not None
        )
        return joint_scores(by_layer, union=own.union, normalised=own.normalised)


class EvictingSequence:
    """One sequence that is evicted from between its passes, which end where the policy acts."""

    def __init__(self, keeper: EvictingKeeper, tenant: Tenant) -> None:
        self.tenant = tenant
        self._keeper = keeper
        self.held = [HeldSequence(keeper.specs[layer]) for layer in keeper.layers]
        by_layer: dict[int, Any] = dict(zip(keeper.layers, self.held, strict=True))
        self.caches = [by_layer.get(layer) or SequenceCache(spec) for layer, spec in enumerate(keeper.specs)]

    def pass_end(self, start: int, chunk: int) -> int:
        """As `OpenSequence` says: no pass goes beyond a position at which the policy may act."""
        every = self._keeper.policy.schedule.every
        return min(start + chunk, start // every * every + every)

    def passed(self, count: int) -> None:
        """As `OpenSequence` says: evicts."""
        self.tenant.came(count)
        self._keeper.observe(self.tenant, self.held, 0, count)
        places = self._keeper.kept(self.tenant, self.held, 0)
        if places is not None:
            for cache in self.held:
                cache.keep(places)


class EvictingRows:
    """A batch each of whose rows is evicted from as if it were alone."""

    def __init__(self, keeper: EvictingKeeper, count: int) -> None:
        self._keeper = keeper
        self._seen, self._places = Rows(count), Rows(count)
        self._tenants: list[Tenant | None] = [None] * count
        self._held = [HeldRows(keeper.specs[layer], self._places, self._seen) for layer in keeper.layers]
        by_layer: dict[int, Any] = dict(zip(keeper.layers, self._held, strict=True))
        self.caches = [by_layer.get(layer) or RowCache(spec, self._seen) for layer, spec in enumerate(keeper.specs)]

    def insert(self, row: int, sequence: Any, length: int) -> None:
        """As `OpenRows` says."""
        tenant: Tenant = sequence.tenant
        self._tenants[row] = tenant
        self._seen.lengths[row], self._places.lengths[row] = length, len(tenant.positions)
        for cache, filled in zip(self.caches, sequence.caches, strict=True):
            if isinstance(cache, HeldRows):
                cache.inner.insert(row, filled.inner)
            else:
                cache.insert(row, filled)

    def before(self) -> None:
        """As `OpenRows` says."""
        self._seen.refresh()
        self._places.refresh()

    def passed(self, rows: Sequence[int]) -> None:
        """As `OpenRows` says: evicts."""
        self._seen.advance(rows)
        self._places.advance(rows)
        for row in rows:
            tenant = self._tenants[row]
            if tenant is None:
                raise RuntimeError(f"nothing is in row {row}")
            tenant.came(1)
            self._keeper.observe(tenant, self._held, row, 1)
            places = self._keeper.kept(tenant, self._held, row)
            if places is not None:
                self._places.lengths[row] = len(places)
                for cache in self._held:
                    cache.inner.keep(row, places.tolist())

    def clear(self, row: int) -> None:
        """As `OpenRows` says."""
        self._tenants[row] = None
        self._seen.lengths[row] = self._places.lengths[row] = 0


def _keys(cache: Watched) -> mx.array:
    if cache.inner.keys is None:
        raise RuntimeError("nothing was written to this cache")
    return cache.inner.keys
