"""A session over whatever lists probable tokens by id: requests refused early, asked in parallel, compared by lists."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread
from typing import Protocol

from refract.backends._http import RefusedError
from refract.backends._listed import (
    BLOB_FORMAT,
    Listing,
    compare_windows,
    joined,
    narrowed,
    pack,
    unpack,
)
from refract.backends._refusals import refused
from refract.engine import Blobs
from refract.errors import EngineError
from refract.work import (
    Answer,
    Base,
    BlobRef,
    CompareBase,
    Divergence,
    EffectiveKV,
    Failure,
    Generate,
    Generation,
    Request,
    ScoreTokens,
    TokenIds,
    TokenScores,
    Window,
    WriteBase,
)
from refract.work import Protocol as ScoringProtocol

Reply = tuple[Request, Answer | Failure]


@dataclass(frozen=True, slots=True, kw_only=True)
class Continued:
    """A greedy continuation; `ended` says that its last token is an end of the sequence."""

    tokens: TokenIds
    ended: bool
    listing: Listing | None


class Asker(Protocol):
    """How one server is asked; its methods are called from several threads at once."""

    def generate(self, prompt: TokenIds, most: int, count: int) -> Continued:
        """The greedy continuation of up to `most` tokens, with `count` listed at each (0: none)."""

    def force(self, prompt: TokenIds, tokens: TokenIds, count: int) -> Listing:
        """What is listed at each of `tokens` after `prompt`, token by token, whatever the model prefers."""

    def read(self, tokens: TokenIds, start: int, count: int) -> Listing:
        """What is listed at `tokens[start:]` when all are read in one pass."""


class ListedSession:
    """Fulfils `refract.engine.Session` by an `Asker`.

    `count` (K) tokens are listed for a divergence; `lanes` requests are in flight at once.
    """

    def __init__(
        self,
        *,
        asker: Asker,
        blobs: Blobs,
        effective_kv: EffectiveKV,
        vocab_size: int,
        max_tokens: int,
        count: int,
        lanes: int = 1,
    ) -> None:
        self.effective_kv = effective_kv
        self._asker, self._blobs = asker, blobs
        self._vocab_size, self._max_tokens = vocab_size, max_tokens
        self._count, self._lanes = min(count, vocab_size), lanes

    def run(self, requests: Sequence[Request]) -> Iterator[Reply]:
        """Answers every request; no id outside the vocabulary ever reaches the server."""
        wrong = {r: failure for r in requests if (failure := refused(r, self._vocab_size, self._max_tokens))}
        yield from wrong.items()
        yield from in_parallel(self._answer, [r for r in requests if r not in wrong], self._lanes)

    def _answer(self, request: Request) -> Answer | Failure:
        try:
            if isinstance(request, Generate):
                return self._generate(request)
            if isinstance(request, ScoreTokens):
                return self._score(request)
            if isinstance(request, WriteBase):
                return Base(blob=self._keep(joined(self._listings(request.windows, request.protocol, self._count))))
            return self._compare(request)
        except RefusedError as error:
            return Failure(kind="refused", message=error.message)

    def _generate(self, request: Generate) -> Generation:
        count = max(request.top_k, self._count if request.keep_base else 0)
        found = self._asker.generate(request.prompt, request.max_new_tokens, count)
        listing = found.listing
        return Generation(
            tokens=found.tokens,
            stop="eos" if found.ended else "length",
            listed=narrowed(listing, request.top_k) if listing is not None and request.top_k else None,
            base=self._keep(listing) if listing is not None and request.keep_base and found.tokens else None,
        )

    def _score(self, request: ScoreTokens) -> TokenScores:
        tokens, start, count = request.tokens, request.start, max(1, request.top_k)
        if request.step == 1:
            found = self._asker.force(tokens[:start], tokens[start:], count)
        else:
            found = self._asker.read(tokens, start, count)
        return TokenScores(logprobs=found.logprobs, listed=narrowed(found, request.top_k) if request.top_k else None)

    def _compare(self, request: CompareBase) -> Divergence:
        if request.base.format != BLOB_FORMAT:
            raise EngineError(f"the reference is stored as {request.base.format}, expected {BLOB_FORMAT}")
        reference = unpack(self._blobs.path(request.base).read_bytes())
        count = reference.listed.ids.shape[1]  # another length would be summed in another order, and so rounded
        return compare_windows(reference, request.windows, self._listings(request.windows, request.protocol, count))

    def _listings(self, windows: Sequence[Window], protocol: ScoringProtocol, count: int) -> list[Listing]:
        if protocol == "prefill":
            return [self._asker.read(window.tokens, window.start, count) for window in windows]
        return [self._asker.force(w.tokens[: w.start], w.tokens[w.start :], count) for w in windows]

    def _keep(self, listing: Listing) -> BlobRef:
        return self._blobs.put(pack(listing), format=BLOB_FORMAT)


def in_parallel(ask: Callable[[Request], Answer | Failure], requests: Sequence[Request], lanes: int) -> Iterator[Reply]:
    """Every request with what `ask` says of it, as soon as it is known, `lanes` at once.

    What `ask` raises is raised when its turn comes. Left early, also by Ctrl-C, it waits for nothing: the threads end
    with their request or with the process.
    """
    waiting, done = deque(requests), SimpleQueue[tuple[Request, Answer | Failure | BaseException]]()

    def work() -> None:
        with suppress(IndexError):  # none is left
            while True:
                request = waiting.popleft()
                answer = _carried(ask, request)
                if isinstance(answer, BaseException):
                    waiting.clear()
                done.put((request, answer))

    for _ in range(min(lanes, len(waiting))):
        Thread(target=work, daemon=True).start()
    try:
        for _ in range(len(requests)):
            request, answer = done.get()
            if isinstance(answer, BaseException):
                raise answer
            yield request, answer
    finally:
        waiting.clear()


def _carried(ask: Callable[[Request], Answer | Failure], request: Request) -> Answer | Failure | BaseException:
    try:
        return ask(request)
    except BaseException as error:  # noqa: BLE001 -- raised again in the thread that waits for it
        return error
