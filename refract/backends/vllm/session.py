"""A loaded configuration: every request becomes jobs of vLLM's own scheduler, answered in the order they finish."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from refract.backends._hidden import Hidden, read_base, write_base
from refract.backends._logits import compare_logits, join, list_top, token_logprobs
from refract.backends._refusals import refused
from refract.backends.vllm.start import Worker
from refract.engine import Blobs
from refract.errors import EngineError
from refract.work import (
    Answer,
    Base,
    CompareBase,
    Distributions,
    Divergence,
    EffectiveKV,
    Failure,
    Generate,
    Generation,
    Request,
    ScoreTokens,
    TokenIds,
    TokenScores,
    WriteBase,
)

FORMAT = "vllm-hidden/1"  # as `_hidden` lays it out
_ROWS = 256  # positions whose logits are here at once: 154 MB with a vocabulary of 150,000


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One sequence for vLLM: `forced` tokens after the prompt, or up to `max_tokens` of its own.

    The hidden states of positions `keep[0] … keep[1] - 1`, which predict the tokens after them, are kept.
    """

    prompt: TokenIds
    max_tokens: int
    forced: TokenIds = ()
    keep: tuple[int, int] | None = None

    def message(self, name: str, stop: frozenset[int]) -> dict[str, Any]:
        """What the worker is told."""
        return {
            "id": name,
            "prompt": self.prompt,
            "max_tokens": self.max_tokens,
            "forced": self.forced,
            "stop": sorted(stop),
            "keep": self.keep,
        }


@dataclass(slots=True)
class _Task:
    """A request whose jobs are under way."""

    request: Request
    jobs: tuple[Job, ...]
    hidden: dict[int, Hidden] = field(default_factory=dict)
    tokens: TokenIds = ()
    done: int = 0


def jobs_of(request: Request, *, prefill: bool) -> tuple[Job, ...]:
    """What has to be run for a request; `prefill` says whether a pass over a prompt reads the compressed cache."""
    if isinstance(request, Generate):
        first, kept = len(request.prompt) - 1, request.top_k > 0 or request.keep_base
        keep = (first, first + request.max_new_tokens) if kept else None
        return (Job(prompt=request.prompt, max_tokens=request.max_new_tokens, keep=keep),)
    if isinstance(request, ScoreTokens):
        return (_forcing(request.tokens, request.start, at_once=prefill and request.step > 1),)
    at_once = request.protocol == "prefill"
    return tuple(_forcing(window.tokens, window.start, at_once=at_once) for window in request.windows)


def _forcing(tokens: TokenIds, start: int, *, at_once: bool) -> Job:
    """Reads `tokens`, in one pass or the last of them token by token, and keeps what predicts tokens[start:]."""
    keep = (start - 1, len(tokens) - 1)
    if at_once:
        return Job(prompt=tokens[:-1], max_tokens=1, keep=keep)
    return Job(prompt=tokens[:start], max_tokens=len(tokens) - start, forced=tokens[start:], keep=keep)


class VLLMSession:
    """Fulfils `refract.engine.Session` by a worker."""

    def __init__(
        self,
        worker: Worker,
        *,
        blobs: Blobs,
        effective_kv: EffectiveKV,
        eos_ids: frozenset[int],
        vocab_size: int,
        max_tokens: int,
        prefill: bool,
    ) -> None:
        self.effective_kv = effective_kv
        self._worker, self._blobs, self._prefill = worker, blobs, prefill
        self._eos_ids, self._vocab_size, self._max_tokens = eos_ids, vocab_size, max_tokens
        self._count = 0

    def run(self, requests: Sequence[Request]) -> Iterator[tuple[Request, Answer | Failure]]:
        """Answers every request once, each when its last job is done."""
        waiting: dict[str, tuple[_Task, int]] = {}
        for request in dict.fromkeys(requests):
            failure = refused(request, self._vocab_size, self._max_tokens)
            if failure is not None:
                yield request, failure
            else:
                waiting |= self._queued(request)
        while waiting:
            name, tokens, hidden = self._worker.next_done()
            task, index = waiting.pop(name)
            self._take(task, index, tokens, hidden)
            if task.done == len(task.jobs):
                yield task.request, self._answer(task)

    def _queued(self, request: Request) -> dict[str, tuple[_Task, int]]:
        task = _Task(request, jobs_of(request, prefill=self._prefill))
        names = {}
        for index in range(len(task.jobs)):
            self._count += 1
            names[f"r{self._count}"] = task, index
        self._worker.add([job.message(name, self._eos_ids) for name, job in zip(names, task.jobs, strict=True)])
        return names

    def _take(self, task: _Task, index: int, tokens: TokenIds, hidden: Hidden | None) -> None:
        job = task.jobs[index]
        if job.forced and tokens != job.forced:
            raise EngineError("vLLM wrote other tokens than it was forced to", hint="use a version near 0.32.0")
        if job.keep is not None:
            wanted = job.keep[1] - job.keep[0] if job.forced or job.max_tokens == 1 else len(tokens)
            found = 0 if hidden is None else len(hidden)
            if hidden is None or found != wanted:
                raise EngineError(
                    f"vLLM's forward passes gave {found} hidden states where {wanted} were due",
                    hint="use a version near 0.32.0, or ask a running server with --url",
                )
            task.hidden[index] = hidden
        task.tokens = tokens
        task.done += 1

    def _answer(self, task: _Task) -> Answer:
        request = task.request
        if isinstance(request, Generate):
            return self._generation(request, task.tokens, task.hidden.get(0))
        if isinstance(request, ScoreTokens):
            return self._scores(request, task.hidden[0])
        if isinstance(request, WriteBase):
            hidden = [task.hidden[index] for index in range(len(task.jobs))]
            return Base(blob=write_base(self._blobs, FORMAT, hidden))
        return self._divergence(request, task)

    def _generation(self, request: Generate, tokens: TokenIds, hidden: Hidden | None) -> Generation:
        listed = base = None
        if hidden is not None and request.top_k:
            parts = [list_top(self._worker.logits(part), request.top_k) for part in _parts(hidden)]
            listed = _joined(parts)
        if hidden is not None and request.keep_base:
            base = write_base(self._blobs, FORMAT, [hidden])
        ended = bool(tokens) and tokens[-1] in self._eos_ids
        return Generation(tokens=tokens, stop="eos" if ended else "length", listed=listed, base=base)

    def _scores(self, request: ScoreTokens, hidden: Hidden) -> TokenScores:
        logprobs, listed, done = [], [], request.start
        for part in _parts(hidden):
            logits = self._worker.logits(part)
            logprobs.append(token_logprobs(logits, request.tokens[done : done + len(part)]))
            if request.top_k:
                listed.append(list_top(logits, request.top_k))
            done += len(part)
        return TokenScores(logprobs=np.concatenate(logprobs), listed=_joined(listed) if listed else None)

    def _divergence(self, request: CompareBase, task: _Task) -> Divergence:
        """Both sides' states go through this model's output head in blocks of one shape: equal states, equal logits."""
        reference, found, begin = read_base(self._blobs, FORMAT, request.base), [], 0
        for index, window in enumerate(request.windows):
            done = window.start
            ours = reference[begin : begin + window.positions]
            for theirs in _parts(task.hidden[index]):
                here = slice(done - window.start, done - window.start + len(theirs))
                sides = self._worker.logits(ours[here]), self._worker.logits(theirs)
                found.append(compare_logits(*sides, window.tokens[done : done + len(theirs)], window=index))
                done += len(theirs)
            begin += window.positions
        return join(found)


def _parts(hidden: Hidden) -> Iterator[Hidden]:
    for start in range(0, len(hidden), _ROWS):
        yield hidden[start : start + _ROWS]


def _joined(parts: Sequence[Distributions]) -> Distributions:
    return Distributions(
        ids=np.concatenate([part.ids for part in parts]),
        logprobs=np.concatenate([part.logprobs for part in parts]),
        tail=np.concatenate([part.tail for part in parts]),
    )
