"""What the runner makes of sessions that do not keep their promises. Everything answered before is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from refract.engine import Blobs, LoadSpec, Session
from refract.errors import ConfigMismatchError, EngineError, IncompleteError, RefractError
from refract.run.prepare import prepare
from refract.run.progress import Answered, Event, PhaseStarted, Warned, silent
from refract.run.replies import complaint
from refract.run.sessions import Answering, Tally, salted
from refract.run.store import MemoryStore
from refract.testing import Behaviour, FakeEngine, Fault
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
    TokenScores,
    Window,
    WriteBase,
)

from .scenario import small_spec

ASKS = [Generate(prompt=(254, n), max_new_tokens=3, top_k=2) for n in range(40, 44)]
Pairs = Iterator[tuple[Request, Answer | Failure]]
Wrap = Callable[[Session, Sequence[Request]], Pairs]


class Wrapped:
    """A session whose replies pass through `wrap`."""

    def __init__(self, session: Session, wrap: Wrap) -> None:
        self._session, self._wrap = session, wrap

    @property
    def effective_kv(self) -> EffectiveKV:
        return self._session.effective_kv

    def run(self, requests: Sequence[Request]) -> Pairs:
        return self._wrap(self._session, requests)


@dataclass(slots=True, kw_only=True)
class Unruly(FakeEngine):
    """A fake engine with `Wrapped` sessions; `leaving` is called after they are closed."""

    wrap: Wrap
    leaving: Callable[[], None] = lambda: None

    def load(self, spec: LoadSpec, blobs: Blobs) -> AbstractContextManager[Session]:
        return self._wrapped(spec, blobs)

    @contextmanager
    def _wrapped(self, spec: LoadSpec, blobs: Blobs) -> Iterator[Session]:
        try:
            with FakeEngine.load(self, spec, blobs) as session:
                yield Wrapped(session, self.wrap)
        finally:
            self.leaving()


@dataclass(slots=True, kw_only=True)
class Unloadable(FakeEngine):
    """A fake engine without room."""

    def load(self, spec: LoadSpec, blobs: Blobs) -> AbstractContextManager[Session]:
        raise MemoryError("not enough")


def ask(engine: FakeEngine, store: MemoryStore, *, progress: Callable[[Event], None] = silent) -> object:
    side = prepare(small_spec(), engine).reference
    with Answering(engine, side, store, progress, Tally()) as session:
        return session.answer(ASKS, phase="reference")


@pytest.fixture
def store(tmp_path: Path) -> MemoryStore:
    return MemoryStore(tmp_path / "blobs")


def skip_one(session: Session, requests: Sequence[Request]) -> Pairs:
    return session.run(requests[1:])


def answer_twice(session: Session, requests: Sequence[Request]) -> Pairs:
    yield from session.run(requests[:2])
    yield from session.run(requests[:2])


def answer_another(session: Session, requests: Sequence[Request]) -> Pairs:
    yield from session.run(requests[:1])
    yield from session.run([Generate(prompt=(1, 2, 3), max_new_tokens=2)])


def answer_too_long(session: Session, requests: Sequence[Request]) -> Pairs:
    for request, answer in session.run(requests):
        yield request, replace(answer, tokens=(1, 2, 3, 4), listed=None)  # type: ignore[arg-type]


def answer_in_another_kind(session: Session, requests: Sequence[Request]) -> Pairs:
    for request, _ in session.run(requests):
        yield request, TokenScores(logprobs=np.zeros(3, dtype=np.float32))


@pytest.mark.parametrize(
    ("wrap", "message", "kept"),
    [
        (skip_one, "left 1 of 4 requests unanswered: Generate after 2 tokens", 3),
        (answer_twice, "answered a request that was already answered: Generate after 2 tokens", 2),
        (answer_another, "answered a request that was never asked: Generate after 3 tokens", 1),
        (answer_too_long, r"gave a wrong answer to Generate after 2 tokens: expected \[3\] positions, found \[4\]", 0),
        (answer_in_another_kind, "expected a Generation, found a TokenScores", 0),
    ],
)
def test_a_session_that_breaks_its_contract_is_an_engine_error(
    store: MemoryStore, wrap: Wrap, message: str, kept: int
) -> None:
    engine = Unruly(wrap=wrap)
    with pytest.raises(EngineError, match=message):
        ask(engine, store)
    assert len(store._answers) == kept
    assert engine.open_sessions == 0


@pytest.mark.parametrize(
    ("how", "expected", "message"),
    [
        ("bug", EngineError, "fake failed while answering.*RuntimeError: the fake engine was told to crash"),
        ("engine", EngineError, "^the fake engine was told to fail$"),
        ("interrupt", KeyboardInterrupt, "^$"),
    ],
)
def test_an_engine_that_dies_leaves_what_it_answered_and_a_closed_session(
    store: MemoryStore, how: str, expected: type[BaseException], message: str
) -> None:
    engine = FakeEngine(fault=Fault(after=2, how=how))  # type: ignore[arg-type]
    with pytest.raises(expected, match=message):
        ask(engine, store)
    assert len(store._answers) == 2
    assert engine.open_sessions == 0
    found = ask(engine, store)
    assert isinstance(found, dict)
    assert list(found) == ASKS
    assert len(engine.answered) == 4


def test_a_close_that_fails_is_an_engine_error_but_never_hides_the_first_one(store: MemoryStore) -> None:
    def leave() -> None:
        raise OSError("the server does not stop")

    def crash(session: Session, requests: Sequence[Request]) -> Pairs:
        raise ValueError("first")

    with pytest.raises(EngineError, match="closing its session: OSError: the server does not stop"):
        ask(Unruly(wrap=lambda session, requests: session.run(requests), leaving=leave), store)
    with pytest.raises(EngineError, match="taking its requests: ValueError: first"):
        ask(Unruly(wrap=crash, leaving=leave), MemoryStore(store.blobs.folder))


def test_a_load_that_fails_is_an_engine_error_and_its_own_kind_stays(store: MemoryStore) -> None:
    with pytest.raises(EngineError, match="while loading ctk=f16,ctv=f16: MemoryError: not enough"):
        ask(Unloadable(), store)
    engine = FakeEngine(candidate_behaviour=Behaviour.WRONG_SERVER)
    side = prepare(small_spec(), engine).candidates[0]
    with (
        pytest.raises(ConfigMismatchError, match="asked for ctk=q8_0,ctv=q8_0"),
        Answering(engine, side, store, silent, Tally()) as session,
    ):
        session.answer(ASKS, phase="x")


def test_an_error_of_the_listener_is_not_blamed_on_the_engine(store: MemoryStore) -> None:
    def fail(event: Event) -> None:
        if isinstance(event, Answered):
            raise ZeroDivisionError

    engine = FakeEngine()
    with pytest.raises(ZeroDivisionError):
        ask(engine, store, progress=fail)
    assert engine.open_sessions == 0
    assert len(store._answers) == 1


def test_a_failure_is_reported_and_asked_again_next_time(store: MemoryStore) -> None:
    def fail_first(session: Session, requests: Sequence[Request]) -> Pairs:
        for request, answer in session.run(requests):
            wanted = isinstance(request, Generate) and request.prompt[1] == 40
            yield request, Failure(kind="timeout", message="no answer in 60 s") if wanted else answer

    events: list[Event] = []
    found = ask(Unruly(wrap=fail_first), store, progress=events.append)
    assert isinstance(found, dict)
    assert found[ASKS[0]] == Failure(kind="timeout", message="no answer in 60 s")
    assert [event.message for event in events if isinstance(event, Warned)] == [
        "reference: Generate after 2 tokens failed: timeout: no answer in 60 s"
    ]
    engine = FakeEngine()
    again = ask(engine, store)
    assert isinstance(again, dict)
    assert isinstance(again[ASKS[0]], Generation)
    assert engine.answered == [ASKS[0]]


def test_a_salted_request_is_asked_anew_and_found_under_its_plain_name(store: MemoryStore) -> None:
    engine = FakeEngine()
    side = prepare(small_spec(), engine).reference
    events: list[Event] = []
    with Answering(engine, side, store, events.append, Tally()) as session:
        first = session.answer(ASKS, phase="reference")
        second = session.answer(ASKS, phase="floor", salt="floor")
    assert list(first) == list(second) == ASKS
    assert len(engine.answered) == 8
    assert engine.loads == ["ctk=f16,ctv=f16"]
    assert {request.salt for request in engine.answered} == {"", "floor"}
    assert [event.stored for event in events if isinstance(event, PhaseStarted)] == [0, 0]
    assert salted(replace(ASKS[0], salt="trial 3"), "floor").salt == "floor/trial 3"
    assert salted(ASKS[0], "") is ASKS[0]


def test_nothing_is_loaded_when_loading_is_not_allowed(store: MemoryStore) -> None:
    engine = FakeEngine()
    side = prepare(small_spec(), engine).reference
    ask(engine, store)
    with Answering(engine, side, store, silent, Tally(), allow_load=False) as session:
        assert list(session.answer(ASKS, phase="reference")) == ASKS
        assert session.effective("reference").k == "f16"
        with pytest.raises(IncompleteError, match=r"^1 answer is not stored for ctk=f16,ctv=f16") as caught:
            session.answer([replace(ASKS[0], salt="new")], phase="reference")
    assert caught.value.exit_code == 5
    assert engine.loads == ["ctk=f16,ctv=f16"]


WINDOW = Window(tokens=(1, 2, 3, 4), start=2)
REF = BlobRef(sha256="0" * 64, size_bytes=1, format="x/1")


def _divergence(n: int) -> Divergence:
    zeros, flags = np.zeros(n, dtype=np.float32), np.ones(n, dtype=np.bool_)
    return Divergence(
        kl=zeros,
        same_top=flags,
        reference_margin=zeros,
        token_nll_delta=zeros,
        token_p_delta=zeros,
        reference_nll=zeros,
        reference_finite=flags,
        window=np.zeros(n, dtype=np.int32),
        estimator="kl-exact",
    )


@pytest.mark.parametrize(
    ("request_", "good", "bad"),
    [
        (
            ScoreTokens(tokens=(1, 2, 3), start=1, top_k=0),
            TokenScores(logprobs=np.zeros(2, dtype=np.float32)),
            TokenScores(logprobs=np.zeros(3, dtype=np.float32)),
        ),
        (CompareBase(windows=(WINDOW,), protocol="decode", base=REF), _divergence(2), _divergence(1)),
        (WriteBase(windows=(WINDOW,), protocol="decode"), Base(blob=REF), _divergence(2)),
        (ASKS[0], Generation(tokens=(), stop="eos"), Base(blob=REF)),
    ],
)
def test_an_answer_has_as_many_positions_as_its_request(request_: Request, good: Answer, bad: Answer) -> None:
    assert complaint(request_, good) is None
    assert complaint(request_, bad)
    assert complaint(request_, Failure(kind="x", message="y")) is None


def test_every_error_is_one_line(store: MemoryStore) -> None:
    def crash(session: Session, requests: Sequence[Request]) -> Pairs:
        raise ValueError("line one\nline two")

    with pytest.raises(RefractError) as caught:
        ask(Unruly(wrap=crash), store)
    assert "\n" not in caught.value.message
