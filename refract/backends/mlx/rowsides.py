"""One side (keys or values) of one layer, for a batch whose rows have lengths of their own."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from refract.backends.mlx.key_stages import Stages
from refract.backends.mlx.sides import DenseSide, SideSpec, grown, half


class RowSide:
    """Values (B, H, n, D) as they are read, a row a sequence; every row takes one token a pass."""

    def __init__(self, spec: SideSpec, count: int) -> None:
        self.spec, self.count = spec, count
        self.index = mx.arange(count)
        self.states = [modifier.start() for modifier in spec.modifiers]
        self.values: mx.array | None = None

    def insert(self, row: int, side: DenseSide) -> None:
        """Puts a prefilled sequence of batch size 1 in `row`, replacing whatever was there."""
        side.settle()
        new = side.values
        if new is None:
            raise ValueError("only a prefilled sequence can join a batch")
        like = mx.zeros((self.count, new.shape[1], 0, new.shape[3]), dtype=new.dtype)
        store = grown(self.values, like, new.shape[2])
        store[row] = mx.pad(new[0], [(0, 0), (0, store.shape[2] - new.shape[2]), (0, 0)])
        self.values = store
        for own, joining in zip(self.states, side.states, strict=True):
            if isinstance(own, Stages) and isinstance(joining, Stages):
                own.insert(row, joining, self.count)

    def append(self, x: mx.array, lengths: Sequence[int], span: int) -> mx.array:
        """Values (B, H, span, D) once each row's token of `x` (B, H, 1, D) is at its length."""
        self.values = grown(self.values, x, span)
        places = mx.array(lengths)
        if self.spec.keeps_raw:
            self.values[self.index, :, places] = half(x)[:, :, 0]
            self._code_leaving([length - self.spec.retention.residual for length in lengths])
        else:
            self.values[self.index, :, places] = self.spec.through(x, self.states, places)[:, :, 0]
        return self.values[..., :span, :]

    def _code_leaving(self, leaving: Sequence[int]) -> None:
        """Codes the groups of tokens that end with the one that leaves the newest ones, of each row where one does."""
        if self.values is None:
            return
        group, sink = self.spec.group, self.spec.sink
        first = [place + 1 - group for place in leaving]
        due = [row for row, start in enumerate(first) if start >= sink and (start - sink) % group == 0]
        rows = list(range(self.count)) if self.spec.staged else due  # what learns does so from every token
        if not rows:
            return
        starts = mx.array([max(0, first[row]) for row in rows])
        places = starts[:, None] + mx.arange(group)[None]
        at = (mx.array(rows)[:, None], slice(None), places)
        old = mx.moveaxis(self.values[at], 1, 2)  # (rows, H, group, D)
        positions = mx.array(leaving) if self.spec.staged else starts
        coded = self.spec.through(old, self.states, positions)
        kept = mx.where(mx.array([row in due for row in rows])[:, None, None, None], coded, old)
        self.values[at] = mx.moveaxis(kept, 2, 1)

    def keep(self, row: int, places: Sequence[int]) -> None:
        """Moves what is at ascending `places` of a row to its beginning; the row's length is the caller's.

        Raises: KVUnsupportedError as the spec does.
        """
        self.spec.refuse_gaps()
        if self.values is None:
            return
        kept = self.values[row][:, mx.array(places)]
        self.values[row] = mx.pad(kept, [(0, 0), (0, self.values.shape[2] - len(places)), (0, 0)])
