"""A loaded configuration: windows through llama-perplexity, everything else through one or more llama-servers."""

from __future__ import annotations

import queue
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace

import numpy as np

from refract.backends._http import RefusedError
from refract.backends._listed import Listing, compare_listings, narrowed, pack, unpack
from refract.backends._logits import join
from refract.backends._refusals import refused
from refract.backends.llamacpp.forcing import Asker
from refract.backends.llamacpp.listed import BLOB_FORMAT
from refract.backends.llamacpp.perplexity import Perplexity, fits
from refract.backends.llamacpp.server import Server
from refract.engine import Blobs
from refract.errors import EngineError
from refract.work import (
    BLOB_LIST,
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
    TokenScores,
    Window,
    WriteBase,
    pack_blobs,
    unpack_blobs,
)

_Key = tuple[Window, BlobRef | None]

Reply = tuple[Request, Answer | Failure]


class LlamaCppSession:
    """Fulfils `refract.engine.Session`.

    `count` (K) tokens are listed for a divergence that a server reads: in decode protocol, and where `lists_prompts`
    in windows that llama-perplexity does not score. Every server answers `parallel` requests at once.
    """

    def __init__(
        self,
        *,
        servers: Sequence[Server],
        asker: Asker,
        perplexity: Perplexity | None,
        blobs: Blobs,
        effective_kv: EffectiveKV,
        max_tokens: int,
        count: int,
        parallel: int = 1,
        lists_prompts: bool = False,
    ) -> None:
        self.effective_kv = effective_kv
        self._asker, self._perplexity, self._blobs = asker, perplexity, blobs
        self._max_tokens, self._count = max_tokens, min(count, asker.vocab_size)
        self._lists_prompts = lists_prompts
        self._slots = [server for server in servers for _ in range(parallel)]

    def run(self, requests: Sequence[Request]) -> Iterator[Reply]:
        """Answers every request; those for the servers as soon as one is free."""
        wrong = {request: failure for request in requests if (failure := self._refused(request)) is not None}
        yield from wrong.items()
        left = [request for request in requests if request not in wrong]
        whole = {request: _is_prefill(request) and not _unfit(request) for request in left}
        yield from self._windows([request for request in left if whole[request]])
        yield from self._served([request for request in left if not whole[request]])

    # Windows, through llama-perplexity.

    def _windows(self, requests: Sequence[Request]) -> Iterator[Reply]:
        """The requests over whole windows, each as soon as its last window is known."""
        jobs = {request: self._keys(request) for request in requests}
        found: dict[_Key, BlobRef | Divergence] = {}
        for batch in _batches(key for keys in jobs.values() for key in keys):
            for window, result in self._batch(batch):
                found[batch[window]] = result
                for request in [r for r, keys in jobs.items() if found.keys() >= set(keys)]:
                    yield request, self._whole([found[key] for key in jobs.pop(request)])

    def _keys(self, request: Request) -> tuple[_Key, ...]:
        """What each of the request's windows is compared with; a base that is to be written has None."""
        if isinstance(request, CompareBase):
            return tuple(zip(request.windows, self._parts(request.base, len(request.windows)), strict=True))
        assert isinstance(request, WriteBase)
        return tuple((window, None) for window in request.windows)

    def _batch(self, batch: Mapping[Window, _Key]) -> Iterator[tuple[Window, BlobRef | Divergence]]:
        if self._perplexity is None:
            raise EngineError("there is no llama-perplexity here", hint="refract engines build-llamacpp")
        refs = [ref for _, ref in batch.values() if ref is not None]
        if refs:
            yield from self._perplexity.compare(list(batch), refs)
        else:
            yield from self._perplexity.write_bases(list(batch))

    def _whole(self, parts: Sequence[BlobRef | Divergence]) -> Answer:
        refs = [part for part in parts if isinstance(part, BlobRef)]
        if refs:
            return Base(blob=self._one(refs))
        return together([part for part in parts if isinstance(part, Divergence)])

    def _one(self, refs: Sequence[BlobRef]) -> BlobRef:
        """One blob that names all."""
        if len(refs) == 1:
            return refs[0]
        return self._blobs.put(pack_blobs(refs), format=BLOB_LIST)

    def _parts(self, ref: BlobRef, count: int) -> tuple[BlobRef, ...]:
        """The blobs of single windows that `_one` joined. Raises: EngineError when they are not as many as expected."""
        parts: tuple[BlobRef, ...] = (ref,)
        if ref.format == BLOB_LIST:
            parts = unpack_blobs(self._blobs.path(ref).read_bytes())
        if len(parts) != count:
            raise EngineError(f"the stored reference holds {len(parts)} windows, {count} are asked for")
        return parts

    # Everything else, through the servers.

    def _served(self, requests: Sequence[Request]) -> Iterator[Reply]:
        """Each request by whichever server is free, answered as it is done."""
        if not requests:
            return
        free: queue.SimpleQueue[Server] = queue.SimpleQueue()
        for server in self._slots:
            free.put(server)

        def ask(request: Request) -> Answer | Failure:
            server = free.get()
            try:
                return self._answer(server, request)
            finally:
                free.put(server)

        pool = ThreadPoolExecutor(len(self._slots))
        asked: dict[Future[Answer | Failure], Request] = {pool.submit(ask, r): r for r in requests}
        try:
            while asked:
                done = wait(asked, return_when=FIRST_COMPLETED).done
                for future in sorted(done, key=lambda future: future.exception() is not None):  # what failed last
                    yield asked.pop(future), future.result()
        finally:  # without waiting: after Ctrl-C the servers are ended next, and with them what is in flight
            pool.shutdown(wait=False, cancel_futures=True)

    def _answer(self, server: Server, request: Request) -> Answer | Failure:
        try:
            if isinstance(request, Generate):
                return self._generate(server, request)
            if isinstance(request, ScoreTokens):
                return self._score(server, request)
            if isinstance(request, WriteBase):
                kept = [self._keep(self._listed(server, request, w, self._count)) for w in request.windows]
                return Base(blob=self._one(kept))
            return self._compare(server, request)
        except RefusedError as error:
            return Failure(kind="refused", message=error.message)

    def _generate(self, server: Server, request: Generate) -> Generation:
        count = max(request.top_k, self._count if request.keep_base else 0)
        found = self._asker.generate(server, request.prompt, request.max_new_tokens, count)
        listing = found.listing
        return Generation(
            tokens=found.tokens,
            stop="eos" if found.ended else "length",
            listed=narrowed(listing, request.top_k) if listing is not None and request.top_k else None,
            base=self._keep(listing) if listing is not None and request.keep_base and found.tokens else None,
        )

    def _score(self, server: Server, request: ScoreTokens) -> TokenScores:
        tokens, start = request.tokens, request.start
        found = self._asker.force(server, tokens[:start], tokens[start:], max(1, request.top_k))
        return TokenScores(logprobs=found.logprobs, listed=narrowed(found, request.top_k) if request.top_k else None)

    def _compare(self, server: Server, request: CompareBase) -> Divergence:
        parts = []
        for window, ref in zip(request.windows, self._parts(request.base, len(request.windows)), strict=True):
            if ref.format != BLOB_FORMAT:
                raise EngineError(f"the reference is stored as {ref.format}, expected {BLOB_FORMAT}")
            reference = unpack(self._blobs.path(ref).read_bytes())
            if reference.tokens != window.tokens[window.start :]:
                raise EngineError("the stored reference is of another window")
            count = reference.listed.ids.shape[1]  # another length would be summed in another order, and so rounded
            parts.append(compare_listings(reference, self._listed(server, request, window, count)))
        return together(parts)

    def _listed(self, server: Server, request: Request, window: Window, count: int) -> Listing:
        if _is_prefill(request):
            return self._asker.read(server, window.tokens, window.start, count)
        return self._asker.force(server, window.tokens[: window.start], window.tokens[window.start :], count)

    def _keep(self, listing: Listing) -> BlobRef:
        return self._blobs.put(pack(listing), format=BLOB_FORMAT)

    def _refused(self, request: Request) -> Failure | None:
        """Why a request cannot be asked at all."""
        if failure := refused(request, self._asker.vocab_size, self._max_tokens):
            return failure
        if _is_prefill(request) and not self._lists_prompts and (unfit := _unfit(request)):
            message = f"llama-perplexity scores the second half of a window, not {unfit[0].positions} positions"
            return Failure(kind="unsupported-window", message=message)
        return None


def _is_prefill(request: Request) -> bool:
    return isinstance(request, WriteBase | CompareBase) and request.protocol == "prefill"


def _unfit(request: Request) -> list[Window]:
    """Windows of the request that llama-perplexity does not score as asked."""
    return [window for window in _windows_of(request) if not fits(window)]


def _windows_of(request: Request) -> tuple[Window, ...]:
    return request.windows if isinstance(request, WriteBase | CompareBase) else ()


def _batches(keys: Iterable[_Key]) -> list[dict[Window, _Key]]:
    """The keys in batches for one process each: windows of one length, each once, all to write or all to compare."""
    batches: list[dict[Window, _Key]] = []
    for key in dict.fromkeys(keys):
        kind = (len(key[0].tokens), key[1] is None)
        fitting = (b for b in batches if key[0] not in b and _kind(b) == kind)
        batch = next(fitting, None)
        if batch is None:
            batches.append(batch := {})
        batch[key[0]] = key
    return batches


def _kind(batch: Mapping[Window, _Key]) -> tuple[int, bool]:
    window, ref = next(iter(batch.values()))
    return len(window.tokens), ref is None


def together(parts: Sequence[Divergence]) -> Divergence:
    """The divergences of windows one after the other, each under its number."""
    return join([replace(part, window=np.full(len(part), number, np.int32)) for number, part in enumerate(parts)])
