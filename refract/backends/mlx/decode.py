"""Decodes many sequences together, one token each a pass, so that no answer depends on its neighbours.

A batch has a fixed number of rows, a function of the sequence's own length alone; free rows run idle. Matrix products
then have one shape throughout, which is what makes a row's bits independent of the others (verified on MKL by a test
that runs on the real engine).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import mlx.core as mx

from refract.backends._hidden import Hidden
from refract.backends.mlx.forward import prefill
from refract.backends.mlx.hidden import to_numpy
from refract.backends.mlx.keeper import Keeper, OpenSequence
from refract.backends.mlx.lanes import Work, in_waves
from refract.backends.mlx.model import SplitModel
from refract.backends.mlx.tracks import Track

_SHORT = 512  # sequences up to here are batched `batch` rows wide, longer ones in proportion fewer


def bucket_of(total: int) -> int:
    """The power of two, at least 512, that holds a sequence of `total` tokens."""
    return max(_SHORT, 1 << (total - 1).bit_length())


def rows_for(bucket: int, batch: int) -> int:
    """How many sequences of that bucket run together: a constant amount of cache memory, at least one row."""
    return max(1, batch * _SHORT // bucket)


class _Batch:
    """The rows of one lane: prefilled sequences come in, finished tracks go out."""

    def __init__(self, model: SplitModel, keeper: Keeper, count: int, chunk: int, queue: deque[Track]) -> None:
        self.chunk, self.queue = chunk, queue
        self._model, self._rows = model, keeper.rows(count)
        self._tracks: list[Track | None] = [None] * count
        self._tokens = [0] * count

    @property
    def active(self) -> list[Track]:
        """The tracks in its rows."""
        return [track for track in self._tracks if track is not None]

    def next_tracks(self) -> list[Track]:
        """As many waiting tracks as there are free rows, taken off the queue."""
        free = self._tracks.count(None)
        return [self.queue.popleft() for _ in range(min(free, len(self.queue)))]

    def admit(self, track: Track, sequence: OpenSequence, hidden: mx.array, logits: mx.array | None) -> bool:
        """Gives a prefilled track its first step and a free row; false when that step finishes it."""
        token = track.take(to_numpy(hidden)[0, 0], None if logits is None else to_numpy(logits)[0, 0])
        if token is None:
            return False
        row = self._tracks.index(None)
        self._tracks[row], self._tokens[row] = track, token
        self._rows.insert(row, sequence, len(track.prompt))
        return True

    def step(self) -> Work[list[Track]]:
        """One pass over all rows; returns the tracks it finishes."""
        with_logits = any(track.needs_logits for track in self.active)
        self._rows.before()
        hidden = self._model.trunk(mx.array(self._tokens)[:, None], cache=self._rows.caches)
        logits = self._model.head(hidden) if with_logits else None
        yield hidden, logits
        return self._take(to_numpy(hidden)[:, 0], None if logits is None else to_numpy(logits)[:, 0])

    def _take(self, hidden: Hidden, logits: Hidden | None) -> list[Track]:
        finished = []
        self._rows.passed([row for row, track in enumerate(self._tracks) if track is not None])
        for row, track in enumerate(self._tracks):
            if track is None:
                continue
            token = track.take(hidden[row], logits[row] if logits is not None and track.needs_logits else None)
            if token is None:
                self._tracks[row], self._tokens[row] = None, 0
                self._rows.clear(row)
                finished.append(track)
            else:
                self._tokens[row] = token
        return finished


def decode(
    model: SplitModel,
    keeper: Keeper,
    tracks: Sequence[Track],
    *,
    lanes: Sequence[mx.Stream],
    batch: int,
    chunk: int,
) -> Iterator[list[Track]]:
    """Runs all tracks to their end and yields those that finish together; shorter buckets first.

    Prompts are prefilled `chunk` tokens at a time, and up to `batch` tracks take their steps together.
    """
    for bucket in sorted({bucket_of(track.total) for track in tracks}):
        waiting = sorted((t for t in tracks if bucket_of(t.total) == bucket), key=lambda track: len(track.prompt))
        count = rows_for(bucket, batch)
        used = lanes[: -(-len(waiting) // count)]
        batches = [_Batch(model, keeper, count, chunk, deque(waiting[n :: len(used)])) for n in range(len(used))]
        yield from _run(model, keeper, batches, used)


def _run(
    model: SplitModel, keeper: Keeper, batches: Sequence[_Batch], lanes: Sequence[mx.Stream]
) -> Iterator[list[Track]]:
    while any(batch.queue or batch.active for batch in batches):
        finished = list(_admit(model, keeper, batches, lanes))
        for done in in_waves(lanes, [batch.step() for batch in batches if batch.active]):
            finished += done
        if finished:
            yield finished


def _admit(model: SplitModel, keeper: Keeper, batches: Sequence[_Batch], lanes: Sequence[mx.Stream]) -> Iterator[Track]:
    """Prefills waiting tracks into free rows; yields those that their first token finishes."""
    joining = [(batch, track) for batch in batches for track in batch.next_tracks()]
    joining.sort(key=lambda pair: len(pair[1].prompt))
    works = (
        prefill(model, keeper, track.prompt, batch.chunk, with_logits=track.needs_logits) for batch, track in joining
    )
    for (batch, track), (sequence, hidden, logits) in zip(joining, in_waves(lanes, works), strict=True):
        if not batch.admit(track, sequence, hidden, logits):
            yield track
