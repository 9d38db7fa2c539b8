"""The session over lists: what is refused before it is sent, how many are asked at once, what is compared with what."""

from __future__ import annotations

import time
from pathlib import Path
from threading import Barrier, Event, Lock

import numpy as np
import pytest

from refract.backends._asking import Continued, ListedSession, in_parallel
from refract.backends._http import RefusedError
from refract.backends._listed import Listing, listing
from refract.backends._refusals import refused
from refract.errors import EngineError, IncompleteError
from refract.run.blobs import BlobFolder
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

VOCAB = 12
KV = EffectiveKV(k="f16", v="f16", layers=1, layers_compressed=0, bytes_per_token=1.0)


class Fixed:
    """Prefers token 3 with the same probabilities everywhere; `noise` moves them, `blind` hides that from `read`."""

    def __init__(self, noise: float = 0.0, *, blind: bool = False) -> None:
        self.noise, self.blind, self.calls = noise, blind, []  # type: ignore[var-annotated]

    def generate(self, prompt: TokenIds, most: int, count: int) -> Continued:
        self.calls.append("generate")
        if prompt[0] == 11:
            raise RefusedError("no", status=400)
        tokens = (3,) * most
        return Continued(tokens=tokens, ended=False, listing=self.listed(tokens, count) if count else None)

    def force(self, prompt: TokenIds, tokens: TokenIds, count: int) -> Listing:
        self.calls.append("force")
        return self.listed(tokens, count)

    def read(self, tokens: TokenIds, start: int, count: int) -> Listing:
        self.calls.append("read")
        return Fixed(0.0 if self.blind else self.noise).listed(tokens[start:], count)

    def listed(self, tokens: TokenIds, count: int) -> Listing:
        logits = np.linspace(1.0, -1.0, VOCAB)
        logits[3] = 3.0 - self.noise
        row = logits - np.log(np.exp(logits).sum())
        best = np.argsort(-row)[:count]
        return listing(tokens, [row[t] for t in tokens], [best] * len(tokens), [row[best]] * len(tokens))


def session(asker: Fixed, folder: Path, **rest: int) -> ListedSession:
    values = {"vocab_size": VOCAB, "max_tokens": 20, "count": 4, **rest}
    return ListedSession(asker=asker, blobs=BlobFolder(folder), effective_kv=KV, **values)


def ask(own: ListedSession, *requests: Request) -> list[Answer | Failure]:
    found = dict(own.run(requests))
    return [found[request] for request in requests]


WINDOWS = (Window(tokens=(1, 2, 3, 4), start=2), Window(tokens=(5, 3, 6), start=1))


def test_every_kind_of_request_is_answered_in_kind(tmp_path: Path) -> None:
    asker = Fixed()
    plain, kept, scored, stepped = ask(
        session(asker, tmp_path),
        Generate(prompt=(1,), max_new_tokens=3),
        Generate(prompt=(1,), max_new_tokens=3, top_k=2, keep_base=True),
        ScoreTokens(tokens=(1, 2, 3), start=1, top_k=2, step=2),
        ScoreTokens(tokens=(1, 2, 3), start=1, top_k=0),
    )
    assert isinstance(plain, Generation)
    assert (plain.tokens, plain.stop, plain.listed, plain.base) == ((3, 3, 3), "length", None, None)
    assert isinstance(kept, Generation)
    assert kept.base is not None
    assert kept.listed is not None
    assert kept.listed.ids.shape == (3, 2)
    assert isinstance(scored, TokenScores)
    assert scored.listed is not None
    assert scored.listed.ids.shape == (2, 2)
    assert isinstance(stepped, TokenScores)
    assert stepped.listed is None
    assert asker.calls == ["generate", "generate", "read", "force"]


@pytest.mark.parametrize("protocol", ["prefill", "decode"])
def test_itself_is_exactly_0_and_another_is_not(tmp_path: Path, protocol: str) -> None:
    own, other = session(Fixed(), tmp_path), session(Fixed(0.5), tmp_path)
    (base,) = ask(own, WriteBase(windows=WINDOWS, protocol=protocol))  # type: ignore[arg-type]
    assert isinstance(base, Base)
    request = CompareBase(windows=WINDOWS, protocol=protocol, base=base.blob)  # type: ignore[arg-type]
    (same,), (found,) = ask(own, request), ask(other, request)
    assert isinstance(same, Divergence)
    assert isinstance(found, Divergence)
    assert np.all(same.kl == 0.0)
    assert found.estimator == "kl-top4"
    assert found.window.tolist() == [0, 0, 1, 1]
    assert np.all(found.kl > 0.0)


def test_the_candidate_lists_as_many_as_the_reference_did(tmp_path: Path) -> None:
    (base,) = ask(session(Fixed(), tmp_path, count=6), WriteBase(windows=WINDOWS, protocol="decode"))
    assert isinstance(base, Base)
    request = CompareBase(windows=WINDOWS, protocol="decode", base=base.blob)
    (found,) = ask(session(Fixed(), tmp_path, count=3), request)
    assert isinstance(found, Divergence)
    assert found.estimator == "kl-top6"
    assert np.all(found.kl == 0.0)


def test_a_base_of_another_kind_or_window_is_no_base(tmp_path: Path) -> None:
    own = session(Fixed(), tmp_path)
    wrong = BlobRef(sha256="0" * 64, size_bytes=1, format="mlx-hidden/1")
    with pytest.raises(EngineError, match="stored as mlx-hidden/1"):
        ask(own, CompareBase(windows=WINDOWS, protocol="decode", base=wrong))
    (base,) = ask(own, WriteBase(windows=WINDOWS[:1], protocol="decode"))
    assert isinstance(base, Base)
    with pytest.raises(EngineError, match="another window"):
        ask(own, CompareBase(windows=WINDOWS[1:], protocol="decode", base=base.blob))


@pytest.mark.parametrize(
    ("request_", "kind"),
    [
        (Generate(prompt=(), max_new_tokens=1), "empty-prompt"),
        (Generate(prompt=(1, VOCAB), max_new_tokens=1), "invalid-token"),
        (Generate(prompt=(1, -1), max_new_tokens=1), "invalid-token"),
        (Generate(prompt=(1,), max_new_tokens=20), "too-long"),
        (ScoreTokens(tokens=(1, 2), start=0, top_k=0), "empty-prompt"),
        (ScoreTokens(tokens=(1, 2, 99), start=2, top_k=0), "invalid-token"),
        (WriteBase(windows=(Window(tokens=(1, 99), start=1),), protocol="decode"), "invalid-token"),
        (WriteBase(windows=(Window(tokens=(1,) * 21, start=1),), protocol="prefill"), "too-long"),
    ],
)
def test_what_cannot_be_asked_never_reaches_the_server(tmp_path: Path, request_: Request, kind: str) -> None:
    asker = Fixed()
    (found,) = ask(session(asker, tmp_path), request_)
    assert isinstance(found, Failure)
    assert found.kind == kind == (refused(request_, VOCAB, 20) or found).kind
    assert asker.calls == []


def test_what_the_server_refuses_is_a_failure_of_one_request(tmp_path: Path) -> None:
    wrong, right = Generate(prompt=(11,), max_new_tokens=1), Generate(prompt=(1,), max_new_tokens=1)
    found = ask(session(Fixed(), tmp_path), wrong, right)
    assert isinstance(found[0], Failure)
    assert found[0].kind == "refused"
    assert isinstance(found[1], Generation)


REQUESTS = [Generate(prompt=(1,), max_new_tokens=n) for n in range(1, 7)]
DONE = Failure(kind="x", message="y")


def test_as_many_are_asked_at_once_as_there_are_lanes() -> None:
    barrier = Barrier(3)

    def together(request: Request) -> Failure:
        barrier.wait(timeout=30)
        return DONE

    assert {request for request, _ in in_parallel(together, REQUESTS, 3)} == set(REQUESTS)


def test_never_more_than_that() -> None:
    lock, running, most = Lock(), 0, 0

    def count(request: Request) -> Failure:
        nonlocal running, most
        with lock:
            running, most = running + 1, max(most, running + 1)
        time.sleep(0.01)
        with lock:
            running -= 1
        return DONE

    assert len(list(in_parallel(count, REQUESTS, 2))) == 6
    assert most == 2


def test_what_fails_is_raised_and_nothing_else_is_asked() -> None:
    asked = []

    def fail(request: Request) -> Failure:
        asked.append(request)
        if len(asked) == 2:
            raise IncompleteError("gone")
        return DONE

    found = []
    with pytest.raises(IncompleteError, match="gone"):
        found += list(in_parallel(fail, REQUESTS, 1))
    time.sleep(0.05)
    assert len(asked) == 2


def test_left_early_it_waits_for_nothing() -> None:
    release, started = Event(), time.monotonic()

    def slow(request: Request) -> Failure:
        if request != REQUESTS[0]:
            release.wait(60)
        return DONE

    replies = in_parallel(slow, REQUESTS, 2)
    assert next(replies) == (REQUESTS[0], DONE)
    replies.close()  # type: ignore[attr-defined]
    assert time.monotonic() - started < 30
    release.set()


def test_nothing_to_ask_starts_nothing() -> None:
    assert list(in_parallel(lambda request: DONE, [], 4)) == []
