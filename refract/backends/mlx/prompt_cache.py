"""Caches for mlx-lm's own generation: alone, in a batch, trimmed, saved and loaded again.

A sequence's first token is at place 0 of its row, whatever else is in the batch, and each row has a length of its own:
prompts of unequal length need no padding in the cache, and what a batch pads them with is never stored.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import mlx.core as mx
import mlx_lm.models.cache as mlx_lm_cache
from mlx_lm.models.base import create_causal_mask

from refract.backends.mlx.packed import PackedSide
from refract.backends.mlx.sides import DenseSide, SideSpec

WORKING = 3072  # tokens up to which a packed cache keeps a copy of its values as well, for speed


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """How a side is held: `packed` or not, and the tokens up to which a packed one keeps a copy."""

    packed: bool
    working: int = WORKING

    def side(self, spec: SideSpec) -> DenseSide | PackedSide:
        """An empty side."""
        return PackedSide(spec, self.working) if self.packed else DenseSide(spec)


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where in a model a cache belongs, and what it stores: what a saved cache says of itself."""

    kv: str
    layer: int
    layers: int
    head_dim: int
    window: int
    packed: bool
    working: int

    def __deepcopy__(self, memo: Any) -> Origin:
        return self


class CompressedKVCache:
    """One layer's keys and values, as the codecs of a KV configuration store them."""

    def __init__(self, k: SideSpec, v: SideSpec, origin: Origin) -> None:
        storage = Storage(packed=origin.packed, working=origin.working)
        self.k, self.v, self.origin = storage.side(k), storage.side(v), origin

    @property
    def offset(self) -> int:
        """Tokens held, which is the next one's position."""
        return self.k.length

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """All keys and values so far (B, H, n, D), the new ones included, as they are read."""
        return self.k.append(keys), self.v.append(values)

    def make_mask(
        self,
        N: int,  # noqa: N803
        return_array: bool = False,
        window_size: int | None = None,  # all three are mlx-lm's own names
    ) -> mx.array | str | None:
        """The attention mask of the next N tokens, as mlx-lm's own caches make it."""
        window = window_size or self.origin.window
        if window:
            return create_causal_mask(N, self.offset, window_size=window)
        if N == 1:
            return None
        return create_causal_mask(N, self.offset) if return_array else "causal"

    def size(self) -> int:
        """Tokens held."""
        return self.offset

    def empty(self) -> bool:
        """Whether nothing was written yet."""
        return self.offset == 0

    def is_trimmable(self) -> bool:
        """Whether the newest tokens can be taken back, which is so unless keys were learnt from."""
        return not any(modifier.staged for modifier in self.k.spec.modifiers)

    def trim(self, n: int) -> int:
        """Drops the newest `n` tokens, as many as there are; returns how many."""
        n = min(n, self.offset)
        for side in (self.k, self.v):
            side.trim(side.length - n)
        return n

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays held."""
        return self.k.nbytes + self.v.nbytes

    @property
    def state(self) -> list[Any]:
        """Everything a saved cache needs; for evaluation, all arrays are among it."""
        origin = [value if isinstance(value, str) else int(value) for value in asdict(self.origin).values()]
        return [*origin, self.k.save(), self.v.save()]

    @classmethod
    def from_state(cls, state: Sequence[Any]) -> Any:
        """The cache whose `state` this is; where a modifier needs the model, it has to be bound to it before use."""
        from refract.backends.mlx.prompt_caches import restored_cache  # which builds what is defined here

        return restored_cache(state)

    @classmethod
    def merge(cls, caches: Sequence[CompressedKVCache]) -> BatchCompressedKVCache:
        """A batch whose rows are these caches, one sequence each."""
        return BatchCompressedKVCache([copy.deepcopy(cache) for cache in caches])


class BatchCompressedKVCache:
    """One layer's caches of a batch: a row a sequence, compressed as it would be alone."""

    def __init__(self, rows: list[CompressedKVCache]) -> None:
        self.rows = rows
        self._left: list[int] | None = None  # tokens of each row's prompt that are still to come

    @property
    def offset(self) -> mx.array:
        """Each row's next position (B,)."""
        return mx.array([row.offset for row in self.rows])

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Keys and values (B, H, span, D), each row's own first, then zeros."""
        count = keys.shape[2]
        new = [count] * len(self.rows)
        if self._left is not None:
            new = [min(count, left) for left in self._left]
            self._left = [left - taken for left, taken in zip(self._left, new, strict=True)]
        held = []
        for at, (row, taken) in enumerate(zip(self.rows, new, strict=True)):
            own = keys[at : at + 1, :, :taken], values[at : at + 1, :, :taken]
            held.append(row.update_and_fetch(*own) if taken else own)  # a prompt at its end sees none of the padding
        span = max(row.offset for row in self.rows)
        return _stacked((k for k, _ in held), span), _stacked((v for _, v in held), span)

    def make_mask(
        self,
        N: int,  # noqa: N803
        return_array: bool = False,
        window_size: int | None = None,  # all three are mlx-lm's own names
    ) -> mx.array:
        """Which places each row's next N tokens attend to, (B, 1, N, span)."""
        new = [N if self._left is None else min(N, left) for left in self._left or [N] * len(self.rows)]
        span = max(row.offset + taken for row, taken in zip(self.rows, new, strict=True))
        places, queries = mx.arange(span)[None, None], (self.offset[:, None] + mx.arange(N)[None])[..., None]
        mask = places <= queries
        window = window_size or self.rows[0].origin.window
        if window:
            mask = mask & (places > queries - window)
        return mask[:, None]

    def prepare(
        self,
        *,
        left_padding: Sequence[int] | None = None,
        lengths: Sequence[int] | None = None,
        right_padding: Sequence[int] | None = None,
    ) -> None:
        """Notes that of the tokens to come only the first `lengths` of each row are its own."""
        if left_padding is not None and max(left_padding) > 0:
            raise ValueError("prompts are padded on the right, expected no left padding")
        if right_padding is not None and max(right_padding) > 0 and lengths is not None:
            self._left = list(lengths)

    def finalize(self) -> None:
        """Ends what `prepare` began; padding was never stored."""
        self._left = None

    def filter(self, batch_indices: Sequence[int] | mx.array) -> None:
        """Keeps these rows, in this order."""
        indices = batch_indices.tolist() if isinstance(batch_indices, mx.array) else batch_indices
        self.rows = [self.rows[index] for index in indices]

    def extend(self, other: BatchCompressedKVCache) -> None:
        """Adds the rows of another batch."""
        self.rows = [*self.rows, *other.rows]

    def extract(self, idx: int) -> CompressedKVCache:
        """A copy of one row, a cache of its own."""
        return copy.deepcopy(self.rows[idx])

    def size(self) -> int:
        """Tokens that the longest row holds."""
        return max(row.offset for row in self.rows)

    def empty(self) -> bool:
        """Whether nothing was written yet."""
        return all(row.empty() for row in self.rows)

    def is_trimmable(self) -> bool:
        """Whether every row is."""
        return all(row.is_trimmable() for row in self.rows)

    def trim(self, n: int) -> int:
        """Drops the newest `n` tokens of every row; returns how many of the longest."""
        return max(row.trim(n) for row in self.rows)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays held."""
        return sum(row.nbytes for row in self.rows)

    @property
    def state(self) -> list[Any]:
        """The rows' own."""
        return [row.state for row in self.rows]


def _stacked(rows: Iterable[mx.array], span: int) -> mx.array:
    """Rows (1, H, n, D) of their own lengths as one array (B, H, span, D)."""
    padded = [mx.pad(row, [(0, 0), (0, 0), (0, span - row.shape[2]), (0, 0)]) for row in rows]
    return mx.concatenate(padded, axis=0)


def register() -> None:
    """Makes mlx-lm's `load_prompt_cache`, which looks its classes up by name, know ours."""
    vars(mlx_lm_cache).setdefault(CompressedKVCache.__name__, CompressedKVCache)
