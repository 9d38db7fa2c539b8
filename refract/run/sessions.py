"""One configuration's answers: what the store has, and the rest from one session that is loaded only if needed."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from time import perf_counter
from types import TracebackType
from typing import Self

from refract.engine import Engine, Session
from refract.errors import EngineError, IncompleteError, RefractError
from refract.run.prepare import Side
from refract.run.progress import Answered, PhaseEnded, PhaseStarted, Progress, SessionLoaded, Warned, request_cost
from refract.run.replies import complaint, describe
from refract.run.store import Store
from refract.work import Answer, EffectiveKV, Failure, Request, request_key

Replies = dict[Request, Answer | Failure]


@dataclass(slots=True)
class Tally:
    """What a run has cost so far."""

    loads: int = 0
    stored: int = 0
    computed: int = 0


class Answering:
    """A context in which one configuration answers. Whatever was answered is in the store before the next is asked.

    The session is loaded on first need, serves every call to `answer`, and is closed with the context, also when it is
    left by an exception. With `allow_load` false nothing is ever loaded.
    """

    def __init__(
        self, engine: Engine, side: Side, store: Store, progress: Progress, tally: Tally, *, allow_load: bool = True
    ) -> None:
        self._engine, self._side, self._store, self._progress, self._tally = engine, side, store, progress, tally
        self._allow_load = allow_load
        self._context: AbstractContextManager[Session] | None = None
        self._session: Session | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        context, self._context, self._session = self._context, None, None
        if context is None:
            return
        try:
            with self._edge("closing its session"):
                context.__exit__(kind, error, trace)
        except RefractError:
            if error is None:  # what went wrong first says more than a close that then failed too
                raise
        del context
        gc.collect()  # the next configuration needs the memory this one held

    def answer(self, requests: Sequence[Request], *, phase: str, salt: str = "") -> Replies:
        """The answer or failure of every request, by the request as given, though it is asked and stored salted.

        Raises:
            EngineError: the engine failed, or did not answer every request once and in kind.
            IncompleteError: an answer is not stored and nothing may be loaded.
            StoreError: an entry is damaged, or an answer cannot be kept.
        """
        started = perf_counter()
        asked = {salted(request, salt): request for request in requests}
        keys = {sent: request_key(sent, self._side.identity.digest) for sent in asked}
        known = self._store.get_many(keys.values())
        missing = [sent for sent in asked if keys[sent] not in known]
        cost = sum(map(request_cost, missing))
        self._progress(PhaseStarted(phase=phase, requests=len(asked), stored=len(known), cost=cost))
        self._tally.stored += len(known)
        found: dict[Request, Answer | Failure] = {sent: known[key] for sent, key in keys.items() if key in known}
        if missing:
            session = self._loaded(phase, missing=len(missing))
            for sent, answer in self._stream(session, missing):
                found[sent] = self._keep(keys[sent], answer)
                self._report(phase, sent, answer)
        self._progress(PhaseEnded(phase=phase, seconds=perf_counter() - started))
        return {asked[sent]: found[sent] for sent in asked}

    def effective(self, phase: str) -> EffectiveKV:
        """What a session under this configuration really allocates; loads one only if none ever was."""
        if self._session is None and (stored := self._store.effective(self._side.identity.digest)) is not None:
            return stored
        return self._loaded(phase, missing=0).effective_kv

    def _keep(self, key: str, answer: Answer | Failure) -> Answer | Failure:
        if not isinstance(answer, Failure):
            self._store.put(key, answer)
        return answer

    def _report(self, phase: str, request: Request, answer: Answer | Failure) -> None:
        failed = isinstance(answer, Failure)
        self._tally.computed += not failed
        if isinstance(answer, Failure):
            self._progress(Warned(message=f"{phase}: {describe(request)} failed: {answer.kind}: {answer.message}"))
        kind = type(request).__name__
        self._progress(Answered(phase=phase, kind=kind, cost=request_cost(request), failed=failed))

    def _loaded(self, phase: str, *, missing: int) -> Session:
        if self._session is not None:
            return self._session
        if not self._allow_load:
            what = "the effective KV configuration is" if not missing else "1 answer is"
            what = f"{missing} answers are" if missing > 1 else what
            raise IncompleteError(
                f"{what} not stored for {self._side.name} ({phase}), and no model may be loaded",
                hint="run `refract score` with the same settings first",
            )
        started = perf_counter()
        self._tally.loads += 1
        with self._edge(f"loading {self._side.name}"):
            context = self._engine.load(self._side.load, self._store.blobs)
            session = context.__enter__()
            self._context, self._session = context, session
            effective = session.effective_kv
        self._store.put_effective(self._side.identity.digest, effective)
        self._progress(SessionLoaded(phase=phase, kv=self._side.name, seconds=perf_counter() - started))
        return session

    def _stream(self, session: Session, requests: Sequence[Request]) -> Iterator[tuple[Request, Answer | Failure]]:
        """What the session says, each reply checked, until every request is answered."""
        waiting = set(requests)
        with self._edge("taking its requests"):
            replies = iter(session.run(tuple(requests)))
        try:
            while (reply := self._next(replies, len(waiting))) is not None:
                request, answer = reply
                if request not in waiting:
                    known = "already answered" if request in requests else "never asked"
                    raise EngineError(f"{self._engine.name} answered a request that was {known}: {describe(request)}")
                if wrong := complaint(request, answer):
                    raise EngineError(f"{self._engine.name} gave a wrong answer to {describe(request)}: {wrong}")
                waiting.discard(request)
                yield request, answer
        finally:
            close: Callable[[], None] | None = getattr(replies, "close", None)
            if close is not None:
                close()
        if waiting:
            first = next(request for request in requests if request in waiting)
            raise EngineError(
                f"{self._engine.name} left {len(waiting)} of {len(requests)} requests unanswered: {describe(first)}"
            )

    def _next(
        self, replies: Iterator[tuple[Request, Answer | Failure]], waiting: int
    ) -> tuple[Request, Answer | Failure] | None:
        with self._edge(f"answering, {waiting} requests from the end"):
            return next(replies, None)

    @contextmanager
    def _edge(self, doing: str) -> Iterator[None]:
        """Turns whatever foreign engine code raises into EngineError."""
        try:
            yield
        except RefractError:
            raise
        except Exception as error:  # foreign code: nothing narrower is known of it
            raise EngineError(
                f"{self._engine.name} failed while {doing}: {type(error).__name__}: {error}",
                hint="everything answered so far is kept: run the same command again (--debug shows the traceback)",
            ) from error


def salted(request: Request, salt: str) -> Request:
    """The same request under another key; the empty salt changes nothing."""
    return replace(request, salt=f"{salt}/{request.salt}" if request.salt else salt) if salt else request
