"""The session's own work: which requests go where, what is refused, and how windows are joined."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest

from refract.backends.llamacpp.forcing import Asker
from refract.backends.llamacpp.session import LlamaCppSession, together
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
    TokenScores,
    Window,
    WriteBase,
)
from tests.backends.llamacpp.test_forcing import EOS, PLAIN, VOCAB, Script

KV = EffectiveKV(k="f16", v="f16", layers=1, layers_compressed=0, bytes_per_token=1.0)


def window(size: int, first: int = 1) -> Window:
    return Window(tokens=tuple((first + i) % 8 + 1 for i in range(size)), start=size // 2 + 1)


def divergence(value: float, count: int = 2, estimator: str = "kl-exact") -> Divergence:
    floats = np.full(count, value, np.float32)
    return Divergence(
        kl=floats,
        same_top=np.ones(count, np.bool_),
        reference_margin=floats,
        token_nll_delta=floats,
        token_p_delta=floats,
        reference_nll=floats,
        reference_finite=np.ones(count, np.bool_),
        window=np.zeros(count, np.int32),
        estimator=estimator,
    )


class FakePerplexity:
    """Counts processes; a window's base is its first token, its divergence too."""

    def __init__(self, blobs: BlobFolder) -> None:
        self.blobs, self.runs = blobs, []  # type: ignore[var-annotated]

    def write_bases(self, windows: Sequence[Window]) -> Iterator[tuple[Window, BlobRef]]:
        self.runs.append(("write", len(windows), len(windows[0].tokens)))
        for each in windows:
            yield each, self.blobs.put(repr(each).encode(), format="llamacpp-logits/1")

    def compare(self, windows: Sequence[Window], bases: Sequence[BlobRef]) -> Iterator[tuple[Window, Divergence]]:
        self.runs.append(("compare", len(windows), len(windows[0].tokens)))
        for each, base in zip(windows, bases, strict=True):
            assert self.blobs.path(base).read_bytes() == repr(each).encode()
            yield each, divergence(float(each.tokens[0]))


@pytest.fixture
def blobs(tmp_path: Path) -> BlobFolder:
    return BlobFolder(tmp_path)


@pytest.fixture
def perplexity(blobs: BlobFolder) -> FakePerplexity:
    return FakePerplexity(blobs)


def session(
    blobs: BlobFolder, perplexity: FakePerplexity | None = None, *servers: object, parallel: int = 1, **more: bool
) -> LlamaCppSession:
    return LlamaCppSession(
        servers=servers or (Script(), Script()),  # type: ignore[arg-type]  # stand-ins
        asker=Asker(vocab_size=VOCAB, eos_ids=frozenset({EOS}), plain=PLAIN),
        perplexity=perplexity,  # type: ignore[arg-type]
        blobs=blobs,
        effective_kv=KV,
        max_tokens=64,
        count=6,
        parallel=parallel,
        **more,
    )


def ask(own: LlamaCppSession, *requests: Request) -> dict[Request, Answer | Failure]:
    found = dict(own.run(requests))
    assert found.keys() == set(requests)
    return found


def test_windows_of_one_length_share_a_process(blobs: BlobFolder, perplexity: FakePerplexity) -> None:
    own = session(blobs, perplexity)
    writes = [WriteBase(windows=(window(16, i),), protocol="prefill") for i in range(3)]
    other = WriteBase(windows=(window(32),), protocol="prefill")
    bases = ask(own, *writes, other)
    assert perplexity.runs == [("write", 3, 16), ("write", 1, 32)]
    compares = []
    for write in (*writes, other):
        base = bases[write]
        assert isinstance(base, Base)
        compares.append(CompareBase(windows=write.windows, protocol="prefill", base=base.blob))
    found = ask(own, *compares)
    assert perplexity.runs[2:] == [("compare", 3, 16), ("compare", 1, 32)]
    for request, answer in found.items():
        assert isinstance(request, CompareBase)
        assert isinstance(answer, Divergence)
        assert answer.kl[0] == request.windows[0].tokens[0]


def test_several_windows_of_one_request_are_joined_in_order(blobs: BlobFolder, perplexity: FakePerplexity) -> None:
    own = session(blobs, perplexity)
    windows = (window(16, 3), window(32, 1), window(16, 5))
    base = ask(own, request := WriteBase(windows=windows, protocol="prefill"))[request]
    assert isinstance(base, Base)
    compare = CompareBase(windows=windows, protocol="prefill", base=base.blob)
    found = ask(own, compare)[compare]
    assert isinstance(found, Divergence)
    assert found.window.tolist() == [0, 0, 1, 1, 2, 2]
    assert found.kl.tolist() == [float(w.tokens[0]) for w in windows for _ in range(2)]
    with pytest.raises(EngineError, match="holds 3 windows, 1 are asked for"):
        ask(own, replace(compare, windows=windows[:1]))


def test_the_decode_protocol_goes_through_the_servers_and_is_exactly_0_against_itself(blobs: BlobFolder) -> None:
    own = session(blobs)
    windows = (window(12, 2), window(10, 3))
    base = ask(own, request := WriteBase(windows=windows, protocol="decode"))[request]
    assert isinstance(base, Base)
    compare = CompareBase(windows=windows, protocol="decode", base=base.blob)
    found = ask(own, compare)[compare]
    assert isinstance(found, Divergence)
    assert found.kl.tolist() == [0.0] * len(found)
    assert found.estimator == "kl-top6"
    assert np.bincount(found.window).tolist() == [w.positions for w in windows]
    other = CompareBase(windows=(window(12, 4), windows[1]), protocol="decode", base=base.blob)
    with pytest.raises(EngineError, match="of another window"):
        ask(own, other)


def test_a_generation_keeps_its_lists_as_a_base(blobs: BlobFolder) -> None:
    own = session(blobs, None, Script((4, 5)))
    request = Generate(prompt=(2, 3), max_new_tokens=2, top_k=3, keep_base=True)
    found = ask(own, request)[request]
    assert isinstance(found, Generation)
    assert (found.tokens, found.stop) == ((4, 5), "length")
    assert found.listed is not None
    assert found.listed.ids.shape == (2, 3)
    assert found.base is not None
    compare = CompareBase(windows=(Window(tokens=(2, 3, 4, 5), start=2),), protocol="decode", base=found.base)
    answer = ask(own, compare)[compare]
    assert isinstance(answer, Divergence)
    assert answer.kl.tolist() == [0.0, 0.0]


def test_forced_scores(blobs: BlobFolder) -> None:
    request = ScoreTokens(tokens=(2, 3, 4, 5), start=2, top_k=0)
    found = ask(session(blobs), request)[request]
    assert isinstance(found, TokenScores)
    assert found.listed is None
    assert found.logprobs.shape == (2,)


@pytest.mark.parametrize(
    ("request_", "kind"),
    [
        (Generate(prompt=(), max_new_tokens=1), "empty-prompt"),
        (Generate(prompt=(1,) * 60, max_new_tokens=5), "too-long"),
        (Generate(prompt=(1, VOCAB), max_new_tokens=1), "invalid-token"),
        (Generate(prompt=(1, -1), max_new_tokens=1), "invalid-token"),
        (WriteBase(windows=(Window(tokens=(1,) * 16, start=3),), protocol="prefill"), "unsupported-window"),
    ],
)
def test_what_cannot_be_asked_is_a_failure_and_the_rest_is_answered(
    blobs: BlobFolder, perplexity: FakePerplexity, request_: Request, kind: str
) -> None:
    good = Generate(prompt=(2,), max_new_tokens=1)
    found = ask(session(blobs, perplexity), request_, good)
    failure = found[request_]
    assert isinstance(failure, Failure)
    assert failure.kind == kind
    assert isinstance(found[good], Generation)


def test_windows_without_llama_perplexity_are_an_error_with_a_way_out(blobs: BlobFolder) -> None:
    with pytest.raises(EngineError, match="no llama-perplexity") as caught:
        ask(session(blobs), WriteBase(windows=(window(16),), protocol="prefill"))
    assert caught.value.hint == "refract engines build-llamacpp"


def test_a_server_that_is_gone_ends_the_run_and_keeps_what_was_answered(blobs: BlobFolder) -> None:
    class Dying(Script):
        def complete(self, body):  # type: ignore[no-untyped-def]
            if len(self.asked) == 2:
                raise IncompleteError("llama-server is gone")
            return super().complete(body)

    own = session(blobs, None, Dying())
    replies = own.run([Generate(prompt=(2, n), max_new_tokens=1) for n in range(1, 6)])
    assert isinstance(next(replies)[1], Generation)
    assert isinstance(next(replies)[1], Generation)
    with pytest.raises(IncompleteError):
        list(replies)


def test_a_server_with_several_slots_is_asked_that_many_at_once(blobs: BlobFolder) -> None:
    meeting = Barrier(3)

    class Waiting(Script):
        def complete(self, body):  # type: ignore[no-untyped-def]
            meeting.wait(10.0)  # raises unless three are asked at once
            return super().complete(body)

    own = session(blobs, None, Waiting(), parallel=3)
    assert len(dict(own.run([Generate(prompt=(2, n), max_new_tokens=1) for n in range(1, 7)]))) == 6


def test_estimators_do_not_mix() -> None:
    assert together([divergence(1.0), divergence(2.0)]).kl.tolist() == [1.0, 1.0, 2.0, 2.0]
    with pytest.raises(ValueError, match="different estimators"):
        together([divergence(1.0), divergence(2.0, estimator="kl-top8")])


def test_windows_behind_a_long_cache_go_to_a_server_that_lists_prompts(
    blobs: BlobFolder, perplexity: FakePerplexity
) -> None:
    deep = Window(tokens=window(40).tokens, start=36)
    write = WriteBase(windows=(deep,), protocol="prefill")
    assert isinstance(ask(session(blobs, perplexity), write)[write], Failure)
    own = session(blobs, perplexity, lists_prompts=True)
    whole = WriteBase(windows=(window(16),), protocol="prefill")
    base = ask(own, write, whole)[write]
    assert isinstance(base, Base)
    compare = CompareBase(windows=(deep,), protocol="prefill", base=base.blob)
    found = ask(own, compare)[compare]
    assert isinstance(found, Divergence)
    assert (len(found), found.estimator, found.kl.tolist()) == (4, "kl-top6", [0.0] * 4)
    assert perplexity.runs == [("write", 1, 16)]
