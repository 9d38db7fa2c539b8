"""Answers requests with a loaded MLX model under one KV configuration."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np

from refract.backends._hidden import Hidden, read_base, write_base
from refract.backends._logits import join, list_top, token_logprobs
from refract.backends._refusals import refused
from refract.backends.mlx.decode import decode
from refract.backends.mlx.forward import hidden_before
from refract.backends.mlx.hidden import FORMAT, compare_hidden, to_numpy
from refract.backends.mlx.keeper import Keeper
from refract.backends.mlx.lanes import Work, in_waves
from refract.backends.mlx.model import SplitModel
from refract.backends.mlx.tracks import ForcedTrack, GreedyTrack, Track
from refract.engine import Blobs
from refract.work import (
    Answer,
    Base,
    CompareBase,
    Divergence,
    EffectiveKV,
    Failure,
    Generate,
    Generation,
    Request,
    ScoreTokens,
    TokenScores,
    WriteBase,
)


@dataclass(slots=True)
class _Windows:
    """A KL request whose windows are being worked on."""

    request: WriteBase | CompareBase
    hidden: dict[int, Hidden] = field(default_factory=dict)
    divergences: dict[int, Divergence] = field(default_factory=dict)


class MLXSession:
    """One model, one KV configuration. Every request starts from caches of its own."""

    def __init__(
        self,
        model: SplitModel,
        keeper: Keeper,
        *,
        effective_kv: EffectiveKV,
        blobs: Blobs,
        eos_ids: frozenset[int],
        vocab_size: int,
        max_tokens: int,
        dtype: mx.Dtype,
        lanes: Sequence[mx.Stream],
        batch: int,
        chunk: int,
    ) -> None:
        self.effective_kv = effective_kv
        self._model, self._keeper, self._blobs = model, keeper, blobs
        self._eos_ids, self._vocab_size, self._max_tokens = eos_ids, vocab_size, max_tokens
        self._dtype, self._lanes, self._batch, self._chunk = dtype, lanes, batch, chunk
        self._pool = ThreadPoolExecutor(len(lanes))

    def run(self, requests: Sequence[Request]) -> Iterator[tuple[Request, Answer | Failure]]:
        """Answers every request once: windows scored in one pass first, then everything decoded token by token."""
        valid: list[Request] = []
        for request in dict.fromkeys(requests):
            failure = refused(request, self._vocab_size, self._max_tokens)
            if failure is None:
                valid.append(request)
            else:
                yield request, failure
        yield from self._run_windows(
            [r for r in valid if isinstance(r, WriteBase | CompareBase) and r.protocol == "prefill"]
        )
        yield from self._run_chunked([r for r in valid if isinstance(r, ScoreTokens) and r.step > 1])
        yield from self._run_decoded(
            [
                r
                for r in valid
                if isinstance(r, Generate)
                or (isinstance(r, ScoreTokens) and r.step == 1)
                or (isinstance(r, WriteBase | CompareBase) and r.protocol == "decode")
            ]
        )

    def _run_windows(self, requests: Sequence[WriteBase | CompareBase]) -> Iterator[tuple[Request, Answer]]:
        pending = {id(request): _Windows(request) for request in requests}
        jobs = [(pending[id(request)], index) for request in requests for index in range(len(request.windows))]
        for task, answer in in_waves(self._lanes, itertools.starmap(self._window, jobs)):
            if answer is not None:
                yield task.request, answer

    def _window(self, task: _Windows, index: int) -> Work[tuple[_Windows, Answer | None]]:
        window = task.request.windows[index]
        hidden = yield from hidden_before(self._model, self._keeper, window.tokens, window.start, self._chunk)
        yield hidden
        return task, (yield from self._settle(task, index, to_numpy(hidden)))

    def _settle(self, task: _Windows, index: int, hidden: Hidden) -> Work[Answer | None]:
        """Takes in one window's hidden states; the request's answer when it was the last."""
        request = task.request
        if isinstance(request, WriteBase):
            task.hidden[index] = hidden
            if len(task.hidden) < len(request.windows):
                return None
            return Base(blob=write_base(self._blobs, FORMAT, [task.hidden[i] for i in range(len(request.windows))]))
        sizes = [window.positions for window in request.windows]
        start = sum(sizes[:index])
        window = request.windows[index]
        reference = read_base(self._blobs, FORMAT, request.base)[start : start + sizes[index]]
        tokens = window.tokens[window.start :]
        task.divergences[index] = yield from compare_hidden(
            self._model, reference, hidden, tokens, self._dtype, window=index, pool=self._pool
        )
        if len(task.divergences) < len(sizes):
            return None
        return join([task.divergences[i] for i in range(len(sizes))])

    def _run_chunked(self, requests: Sequence[ScoreTokens]) -> Iterator[tuple[Request, Answer]]:
        works = (hidden_before(self._model, self._keeper, r.tokens, r.start, r.step) for r in requests)
        for request, hidden in zip(requests, in_waves(self._lanes, works), strict=True):
            logits = to_numpy(self._model.head(hidden[None])[0])
            listed = list_top(logits, request.top_k) if request.top_k else None
            yield request, TokenScores(logprobs=token_logprobs(logits, request.tokens[request.start :]), listed=listed)

    def _run_decoded(self, requests: Sequence[Request]) -> Iterator[tuple[Request, Answer]]:
        tracks = [track for request in requests for track in self._tracks(request)]
        sizes = {"batch": self._batch, "chunk": self._chunk}
        for finished in decode(self._model, self._keeper, tracks, lanes=self._lanes, **sizes):
            for request, answer in in_waves(self._lanes, map(self._finish, finished)):
                if answer is not None:
                    yield request, answer

    def _finish(self, track: Track) -> Work[tuple[Request, Answer | None]]:
        if isinstance(track, GreedyTrack):
            return track.owner, self._generation(track)
        if not isinstance(track, ForcedTrack):
            raise TypeError(f"a track is greedy or forced, not {type(track).__name__}")
        if isinstance(track.owner, ScoreTokens):
            return track.owner, TokenScores(logprobs=np.array(track.logprobs, np.float32), listed=track.listed)
        task, index = track.owner
        return task.request, (yield from self._settle(task, index, np.stack(track.hidden)))

    def _tracks(self, request: Request) -> Iterator[Track]:
        if isinstance(request, Generate):
            yield GreedyTrack(request, self._eos_ids)
        elif isinstance(request, ScoreTokens):
            yield ForcedTrack(request, request.tokens, request.start, top_k=request.top_k)
        else:
            task = _Windows(request)
            for index, window in enumerate(request.windows):
                yield ForcedTrack((task, index), window.tokens, window.start)

    def _generation(self, track: GreedyTrack) -> Generation:
        base = write_base(self._blobs, FORMAT, [np.stack(track.hidden)]) if track.hidden else None
        return Generation(tokens=tuple(track.tokens), stop=track.stop, listed=track.listed, base=base)
