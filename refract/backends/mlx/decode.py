"""Decodes many sequences together, one token each a pass, so that no answer depends on its neighbours.

A batch has a fixed number of rows, a function of the sequence's own length alone; free rows run idle. Matrix products
then have one shape throughout, which is what makes a row's bits independent of the others (verified on MKL by a test
that runs on the real engine).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import mlx.core as mx

from refract.backends.mlx.cache import LayerSpec, RowCache, Rows, SequenceCache
from refract.backends.mlx.forward import prefill
from refract.backends.mlx.hidden import to_numpy
from refract.backends.mlx.lanes import on_lane
from refract.backends.mlx.model import SplitModel
from refract.backends.mlx.tracks import Track

_SHORT = 512  # sequences up to here are batched `batch` rows wide, longer ones in proportion fewer


def bucket_of(total: int) -> int:
    """The power of two, at least 512, that holds a sequence of `total` tokens."""
    return max(_SHORT, 1 << (total - 1).bit_length())


def rows_for(bucket: int, batch: int) -> int:
    """How many sequences of that bucket run together: a constant amount of cache memory, at least one row."""
    return max(1, batch * _SHORT // bucket)


@dataclass(frozen=True, slots=True)
class _Prefilled:
    track: Track
    caches: list[SequenceCache]
    hidden: mx.array  # (1, 1, width)
    logits: mx.array | None  # (1, 1, V)


class _Batch:
    """The rows of one lane: prefilled sequences come in, finished tracks go out."""

    def __init__(self, model: SplitModel, specs: Sequence[LayerSpec], count: int, lane: mx.Stream) -> None:
        self._model, self._specs, self._lane = model, specs, lane
        self._rows = Rows(count)
        self._caches = [RowCache(spec, self._rows) for spec in specs]
        self._tracks: list[Track | None] = [None] * count
        self._tokens = [0] * count
        self._incoming: list[_Prefilled] = []
        self._running: tuple[mx.array, mx.array | None] | None = None

    @property
    def busy(self) -> bool:
        """Whether any row is in use or about to be."""
        return bool(self._incoming) or any(track is not None for track in self._tracks)

    def begin_prefills(self, queue: deque[Track]) -> None:
        """Starts prefilling as many waiting tracks as there are free rows."""
        free = self._tracks.count(None) - len(self._incoming)
        for _ in range(min(free, len(queue))):
            self._incoming.append(self._prefill(queue.popleft()))

    def _prefill(self, track: Track) -> _Prefilled:
        def build() -> tuple[list[SequenceCache], mx.array, mx.array | None]:
            caches, last = prefill(self._model, self._specs, track.prompt)
            hidden = last[None, None]
            return caches, hidden, self._model.head(hidden) if track.needs_logits else None

        with mx.stream(self._lane):
            caches, hidden, logits = build()
            mx.async_eval(hidden if logits is None else (hidden, logits))
        return _Prefilled(track, caches, hidden, logits)

    def admit(self) -> Iterator[Track]:
        """Moves prefilled tracks into free rows; yields those that their first token finishes."""
        for new in self._incoming:
            logits = None if new.logits is None else to_numpy(new.logits)[0, 0]
            token = new.track.take(to_numpy(new.hidden)[0, 0], logits)
            if token is None:
                yield new.track
                continue
            row = self._tracks.index(None)
            self._tracks[row], self._tokens[row] = new.track, token
            self._rows.lengths[row] = len(new.track.prompt)
            with mx.stream(self._lane):
                for cache, sequence in zip(self._caches, new.caches, strict=True):
                    cache.insert(row, sequence)
        self._incoming.clear()

    def begin_step(self) -> None:
        """Starts one pass over all rows, if any is in use."""
        active = [track for track in self._tracks if track is not None]
        if not active:
            return

        def build() -> tuple[mx.array, mx.array | None]:
            self._rows.refresh()
            hidden = self._model.trunk(mx.array(self._tokens)[:, None], cache=self._caches)
            return hidden, self._model.head(hidden) if any(track.needs_logits for track in active) else None

        with mx.stream(self._lane):
            hidden, logits = build()
            mx.async_eval(hidden if logits is None else (hidden, logits))
        self._running = hidden, logits

    def finish_step(self) -> Iterator[Track]:
        """Waits for the pass and gives each track its result; yields the tracks it finishes."""
        if self._running is None:
            return
        hidden = to_numpy(self._running[0])[:, 0]
        logits = None if self._running[1] is None else to_numpy(self._running[1])[:, 0]
        self._running = None
        for row, track in enumerate(self._tracks):
            if track is None:
                continue
            self._rows.lengths[row] += 1
            token = track.take(hidden[row], logits[row] if logits is not None and track.needs_logits else None)
            if token is None:
                self._tracks[row], self._tokens[row], self._rows.lengths[row] = None, 0, 0
                yield track
            else:
                self._tokens[row] = token


def decode(
    model: SplitModel, specs: Sequence[LayerSpec], tracks: Sequence[Track], *, lanes: Sequence[mx.Stream], batch: int
) -> Iterator[Track]:
    """Runs all tracks to their end and yields each as it finishes; shorter buckets first."""
    for bucket in sorted({bucket_of(track.total) for track in tracks}):
        queue = deque(track for track in tracks if bucket_of(track.total) == bucket)
        count = rows_for(bucket, batch)
        wanted = min(len(lanes), -(-len(queue) // count))
        share = -(-len(queue) // wanted)
        batches = [_Batch(model, specs, count, lane) for lane in lanes[:wanted]]
        shares = [deque(queue.popleft() for _ in range(min(share, len(queue)))) for _ in batches]
        yield from _run(batches, shares)


def _run(batches: Sequence[_Batch], queues: Sequence[deque[Track]]) -> Iterator[Track]:
    pairs = list(zip(batches, queues, strict=True))
    while any(batch.busy or queue for batch, queue in pairs):
        for batch, queue in pairs:
            batch.begin_prefills(queue)
        for batch, _ in pairs:
            yield from batch.admit()
            batch.begin_step()
        for batch, _ in pairs:
            yield from batch.finish_step()
