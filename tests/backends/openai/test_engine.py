"""The engine over servers it did not start: which answers for whom, what it refuses, how every fault ends."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from refract.axes.kld import Kld
from refract.axes.trajectory import Trajectory
from refract.backends import load_engine
from refract.backends.openai.engine import OpenAIEngine
from refract.backends.openai.stated import STATED
from refract.engine import Capability, LoadSpec, Session
from refract.errors import (
    ConfigMismatchError,
    EngineError,
    IncompleteError,
    KVUnsupportedError,
    RefractError,
    UsageError,
)
from refract.kv import KVConfig, parse_kv
from refract.run.blobs import BlobFolder
from refract.run.runner import run as score
from refract.run.spec import RunSpec
from refract.run.store import AnswerStore
from refract.work import (
    Answer,
    Base,
    CompareBase,
    Divergence,
    Failure,
    Generate,
    Generation,
    Request,
    ScoreTokens,
    TokenScores,
    Window,
    WriteBase,
)
from tests.axes.support import corpus, prompt_set, prose
from tests.backends.fake_http import FakeServer, Reply, say, serving
from tests.backends.toy_server import Toy, model_folder

PLAIN, SMALL = parse_kv("ctk=f16,ctv=f16"), parse_kv("ctk=q8_0,ctv=q4_0")
WINDOW = Window(tokens=tuple(range(40, 52)), start=6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("toy") / "model")


@dataclass
class Two:
    """An engine with a server of each side."""

    engine: OpenAIEngine
    model: str
    servers: tuple[FakeServer, FakeServer]
    blobs: BlobFolder

    def load(self, kv: KVConfig, max_tokens: int = 100) -> Any:
        return self.engine.load(LoadSpec(model=self.model, kv=kv, max_tokens=max_tokens), self.blobs)


@contextmanager
def two(
    folder: Path, tmp_path: Path, *, noise: float = 0.3, other: dict[str, Any] | None = None, **rest: Any
) -> Iterator[Two]:
    options = rest.pop("options", {})
    with ExitStack() as stack:
        first = stack.enter_context(serving(Toy(folder=folder, **rest)))
        second = stack.enter_context(serving(Toy(folder=folder, noise=noise, **{**rest, **(other or {})})))
        urls = {"reference_url": first.url, "candidate_url": second.url, "patience_s": "1", **options}
        engine = OpenAIEngine(urls, tmp_path / "cache")
        yield Two(engine, str(folder), (first, second), BlobFolder(tmp_path / "blobs"))


def ask(session: Session, *requests: Request) -> list[Answer | Failure]:
    found = dict(session.run(requests))
    return [found[request] for request in requests]


def dead_url() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


# Both sides.


@pytest.mark.parametrize("kind", ["llamacpp", "vllm", "sglang"])
def test_each_side_is_answered_by_its_own_server(folder: Path, tmp_path: Path, kind: str) -> None:
    with two(folder, tmp_path, kind=kind, other={"started": "2.5"}) as run:
        run.engine.check_kv(run.model, PLAIN)
        run.engine.check_kv(run.model, SMALL)
        with run.load(PLAIN) as reference:
            base, own = ask(
                reference,
                WriteBase(windows=(WINDOW,), protocol="decode"),
                Generate(prompt=(5, 6), max_new_tokens=3, top_k=2),
            )
            assert isinstance(base, Base)
            request = CompareBase(windows=(WINDOW,), protocol="decode", base=base.blob)
            (same,) = ask(reference, request)
        with run.load(SMALL) as candidate:
            found, scores = ask(candidate, request, ScoreTokens(tokens=(5, 6, 7), start=1, top_k=0))
    assert isinstance(own, Generation)
    assert isinstance(same, Divergence)
    assert isinstance(found, Divergence)
    assert isinstance(scores, TokenScores)
    assert (same.kl == 0.0).all()
    assert (found.kl > 0.0).all()
    assert found.estimator == "kl-top288"


def test_what_is_stated_is_marked_as_stated(folder: Path, tmp_path: Path) -> None:
    with two(folder, tmp_path) as run, run.load(PLAIN) as reference, run.load(SMALL) as candidate:
        plain, small = reference.effective_kv, candidate.effective_kv
    assert (plain.k, plain.v, plain.layers, plain.layers_compressed) == ("f16", "f16", 4, 0)
    assert (small.k, small.v, small.layers, small.layers_compressed) == ("q8_0", "q4_0", 4, 4)
    assert plain.bytes_per_token == 4 * 2 * 2 * 16 * 2  # layers, heads, sides, head dimension, bytes
    assert small.bytes_per_token == 4 * 2 * 16 * (8.5 + 4.5) / 8
    assert plain.notes[0] == small.notes[0] == STATED
    assert "stated, not read" in STATED
    assert any("no cached prompt is reused" in note for note in small.notes)


def test_a_server_that_ignores_its_compressed_cache_is_not_ok(folder: Path, tmp_path: Path) -> None:
    with two(folder, tmp_path, noise=0.0) as run, AnswerStore(tmp_path / "store") as store:
        found = score(
            RunSpec(
                model=run.model,
                reference=PLAIN,
                candidates=(SMALL,),
                axes=(Trajectory(), Kld(chunks=2, ctx=32)),
                prompts=prompt_set("the keeper counted", "every evening", "the ships"),
                corpus=corpus(one=prose(800, seed=1)),
                n_predict=8,
            ),
            run.engine,
            store,
        )
    (candidate,) = found.candidates
    trajectory, kld = candidate.axes
    assert (kld.status, kld.protocol, kld.score) == ("not-exercised", "decode", None)
    assert trajectory.status == "not-exercised"
    assert candidate.composite.score is None


def test_what_a_server_cannot_do_is_said(folder: Path, tmp_path: Path) -> None:
    everything = {Capability.GENERATE, Capability.TOP_K, Capability.KEEP_BASE, Capability.SCORE_TOKENS}
    for rest, lost, said in (
        ({"kind": "vllm"}, set[Capability](), ""),
        ({"biased": True}, {Capability.SCORE_TOKENS, Capability.KL_DECODE}, "tokens cannot be forced"),
        ({"kind": "other", "ids": False}, everything - {Capability.GENERATE}, "gives no token ids"),
    ):
        with two(folder, tmp_path / str(len(lost)), **rest) as run:  # type: ignore[arg-type]
            run.engine.check_kv(run.model, PLAIN)
            found = run.engine.capabilities(PLAIN)
            assert Capability.KL_PREFILL not in found
            assert lost.isdisjoint(found)
            assert Capability.GENERATE in found
            with run.load(PLAIN) as session:
                notes = " ".join(session.effective_kv.notes)
                assert said in notes
                (answer,) = ask(session, Generate(prompt=(70, 80), max_new_tokens=3))
                assert isinstance(answer, Generation)
            checks = run.engine.check(run.model)
            assert [check.status for check in checks][1] == ("warn" if said else "ok")
            assert checks[-1].message == STATED


def test_ids_outside_the_vocabulary_are_never_sent(folder: Path, tmp_path: Path) -> None:
    with two(folder, tmp_path) as run, run.load(PLAIN) as session:
        before = len(run.servers[0].asked)
        (found,) = ask(session, Generate(prompt=(5, 99999), max_new_tokens=1))
        assert isinstance(found, Failure)
        assert found.kind == "invalid-token"
        assert len(run.servers[0].asked) == before


# One server for both.


@pytest.mark.parametrize("spelling", ["http://localhost:{port}", "http://127.0.0.1:{port}/v1/", "HTTP://[::1]:{port}"])
def test_one_address_for_both_sides_is_refused(folder: Path, spelling: str) -> None:
    urls = {"reference_url": "http://127.0.0.1:8080", "candidate_url": spelling.format(port=8080)}
    with pytest.raises(UsageError, match="one server cannot be both"):
        OpenAIEngine(urls)


def test_one_url_for_both_sides_is_refused_before_anything_is_asked(folder: Path) -> None:
    with serving(Toy(folder=folder)) as server:
        engine = OpenAIEngine({"url": server.url})
        engine.check_kv(str(folder), PLAIN)
        with pytest.raises(UsageError, match="one server cannot be both") as caught:
            engine.check_kv(str(folder), SMALL)
        assert server.asked == []
    assert "--candidate-url" in (caught.value.hint or "")


@pytest.mark.parametrize(("kind", "more"), [("llamacpp", {}), ("vllm", {"started": "7.25"})])
def test_one_process_behind_two_addresses_is_refused(
    folder: Path, tmp_path: Path, kind: str, more: dict[str, str]
) -> None:
    toy = Toy(folder=folder, kind=kind, **more)
    with serving(toy) as one, serving(toy) as other:
        engine = OpenAIEngine({"reference_url": one.url, "candidate_url": other.url})
        engine.check_kv(str(folder), PLAIN)
        with pytest.raises(UsageError, match="are one process"):
            engine.check_kv(str(folder), SMALL)


def test_two_builds_are_refused(folder: Path, tmp_path: Path) -> None:
    with (
        two(folder, tmp_path, other={"build": "b2"}) as run,
        pytest.raises(ConfigMismatchError, match="the reference's server is llama-server b1, the candidate's"),
    ):
        run.engine.check_kv(run.model, SMALL)


def test_a_configuration_without_a_server_is_refused(folder: Path, tmp_path: Path) -> None:
    sides = {"reference_kv": str(PLAIN), "candidate_kv": str(SMALL)}
    with two(folder, tmp_path, options=sides) as run:
        with pytest.raises(KVUnsupportedError, match="has no server"):
            run.engine.check_kv(run.model, parse_kv("ctk=q8_0,ctv=f16"))
        with pytest.raises(KVUnsupportedError, match="has no server"), run.load(parse_kv("ctk=q8_0,ctv=f16")):
            pass


def test_several_candidates_are_refused(folder: Path, tmp_path: Path) -> None:
    sides = {"reference_kv": str(PLAIN), "candidate_kv": f"{SMALL};ctk=q4_0,ctv=q4_0"}
    with (
        two(folder, tmp_path, options=sides) as run,
        pytest.raises(UsageError, match="one candidate at a time"),
    ):
        run.engine.check_kv(run.model, SMALL)


# One side after the other.


def test_the_reference_alone_and_then_the_candidate_alone(folder: Path, tmp_path: Path) -> None:
    spec = LoadSpec(model=str(folder), kv=PLAIN, max_tokens=50)
    blobs = BlobFolder(tmp_path / "blobs")
    with serving(Toy(folder=folder)) as server:
        first = OpenAIEngine({"reference_url": server.url}, tmp_path)
        own = first.identify(spec)
        first.check_kv(spec.model, SMALL)
        with pytest.raises(IncompleteError, match="the answers of the candidate are missing") as caught:
            first.load(LoadSpec(model=str(folder), kv=SMALL, max_tokens=50), blobs).__enter__()
    assert caught.value.exit_code == 5
    assert "--candidate-url" in (caught.value.hint or "")
    with serving(Toy(folder=folder, noise=1.0)) as server:
        second = OpenAIEngine({"candidate_url": server.url}, tmp_path)
        assert second.identify(spec) == own
        with second.load(LoadSpec(model=str(folder), kv=SMALL, max_tokens=50), blobs) as session:
            assert session.effective_kv.k == "q8_0"


def test_a_server_that_is_gone_is_remembered(folder: Path, tmp_path: Path) -> None:
    spec = LoadSpec(model=str(folder), kv=PLAIN, max_tokens=50)
    with serving(Toy(folder=folder)) as server:
        urls = {"reference_url": server.url, "patience_s": "1"}
        own = OpenAIEngine(urls, tmp_path).identify(spec)
    gone = OpenAIEngine(urls, tmp_path)
    assert gone.identify(spec) == own
    assert Capability.KL_DECODE in gone.capabilities(PLAIN)
    with pytest.raises(IncompleteError, match="is gone while answering"):
        OpenAIEngine(urls, tmp_path / "elsewhere").identify(spec)


def test_a_side_that_is_answered_may_be_gone(folder: Path, tmp_path: Path) -> None:
    with serving(Toy(folder=folder, noise=1.0)) as server:
        urls = {"reference_url": dead_url(), "candidate_url": server.url, "patience_s": "1"}
        engine = OpenAIEngine(urls, tmp_path)
        engine.check_kv(str(folder), SMALL)
        spec = LoadSpec(model=str(folder), kv=SMALL, max_tokens=50)
        with engine.load(spec, BlobFolder(tmp_path / "blobs")) as session:
            assert session.effective_kv.k == "q8_0"


def test_identities_hold_no_address_and_differ_by_what_counts(folder: Path, tmp_path: Path) -> None:
    with two(folder, tmp_path) as run:
        reference, candidate = (
            run.engine.identify(LoadSpec(model=run.model, kv=kv, max_tokens=50)) for kv in (PLAIN, SMALL)
        )
        assert reference.digest != candidate.digest
        assert "127.0.0.1" not in repr(reference)
        assert reference.build == "llama-server b1"
        other = LoadSpec(model=run.model, kv=PLAIN, max_tokens=50, options={"parallel": "4"})
        assert run.engine.identify(other).digest != reference.digest
        later = LoadSpec(model=run.model, kv=PLAIN, max_tokens=50, options={"timeout_s": "9"})
        assert run.engine.identify(later).digest == reference.digest


# Faults. Every one ends in one clear error, none in an answer.


def faulty(folder: Path, reply: Callable[[], Reply], path: str = "/v1/completions") -> Callable[..., Reply]:
    """A server that is sound until it has been looked at, and then answers `path` as told."""
    toy = Toy(folder=folder)

    def answer(asked: str, body: Any) -> Reply:
        told = body is not None and asked == path and body.get("max_tokens") == 7
        return reply() if told else toy(asked, body)

    return answer


@pytest.mark.parametrize(
    ("reply", "error", "said"),
    [
        (Reply(body=b'{"choices": [{"text": "abc', cut=None), EngineError, "something that is not JSON"),
        (Reply(body=b'{"choices": [1, 2, 3]}' * 9, cut=20), IncompleteError, "is gone while answering"),
        (Reply(body=b"<html>log in</html>", kind="text/html"), EngineError, "no proxy's page"),
        (Reply(wait_s=3.0), EngineError, "did not answer /v1/completions within 1 s"),
        (say({"id": "cmpl-other", "choices": []}), EngineError, "without the one choice that was asked for"),
        (say({"choices": [{"text": "a"}], "usage": {"prompt_tokens": 9}}),
         EngineError, "answered for a prompt of 9 tokens, 1 were sent"),
        (say({"choices": [{}, {}]}), EngineError, "without the one choice that was asked for"),
        (say([1, 2]), EngineError, "with no object"),
        (say({"choices": [{"text": "a", "finish_reason": "length", "logprobs": {"content": [{"id": 5}]}}]}),
         EngineError, "not as expected"),
        (say({"choices": [{"finish_reason": "length", "logprobs": {"content": [
            {"id": 99999, "logprob": -1.0, "top_logprobs": [{"id": 99999, "logprob": -1.0}]}]}}]}),
         EngineError, "outside the vocabulary"),
        (say({"choices": [{"finish_reason": "length", "logprobs": {"content": [
            {"id": 5, "logprob": -1.0, "top_logprobs": [{"id": 5, "logprob": -1.0}]}]}}]}),
         EngineError, r"stopped \(length\) after 1 of 7 tokens"),
    ],
)  # fmt: skip
def test_a_server_that_misbehaves(
    folder: Path, tmp_path: Path, reply: Reply, error: type[RefractError], said: str
) -> None:
    with serving(faulty(folder, lambda: reply)) as server:
        engine = OpenAIEngine({"reference_url": server.url, "timeout_s": "1", "patience_s": "1"})
        spec = LoadSpec(model=str(folder), kv=PLAIN, max_tokens=50)
        with engine.load(spec, BlobFolder(tmp_path)) as session, pytest.raises(error) as caught:
            ask(session, Generate(prompt=(5,), max_new_tokens=7))
    assert said.replace("\\", "") in f"{caught.value.message} {caught.value.hint}"


def test_500_is_the_failure_of_one_request(folder: Path, tmp_path: Path) -> None:
    reply = say({"error": {"message": "cuda out of memory"}}, status=500)
    with serving(faulty(folder, lambda: reply)) as server:
        engine = OpenAIEngine({"reference_url": server.url})
        spec = LoadSpec(model=str(folder), kv=PLAIN, max_tokens=50)
        with engine.load(spec, BlobFolder(tmp_path)) as session:
            failed, fine = ask(
                session, Generate(prompt=(5,), max_new_tokens=7), Generate(prompt=(5,), max_new_tokens=2)
            )
    assert isinstance(failed, Failure)
    assert "cuda out of memory" in failed.message
    assert isinstance(fine, Generation)


def test_503_while_loading_and_then_ready(folder: Path, tmp_path: Path) -> None:
    busy, toy = [Reply(status=503)] * 3, Toy(folder=folder)
    with serving(lambda path, body: busy.pop() if busy else toy(path, body)) as server:
        engine = OpenAIEngine({"reference_url": server.url, "patience_s": "20"})
        spec = LoadSpec(model=str(folder), kv=PLAIN, max_tokens=50)
        with engine.load(spec, BlobFolder(tmp_path)) as session:
            (found,) = ask(session, Generate(prompt=(5,), max_new_tokens=2))
    assert isinstance(found, Generation)


def test_a_server_that_is_not_there(folder: Path, tmp_path: Path) -> None:
    engine = OpenAIEngine({"reference_url": dead_url(), "patience_s": "1"}, tmp_path)
    with pytest.raises(IncompleteError, match="the connection is refused"):
        engine.identify(LoadSpec(model=str(folder), kv=PLAIN, max_tokens=50))
    checks = engine.check(str(folder))
    assert [check.status for check in checks] == ["ok", "fail", "warn"]


def test_something_else_than_an_openai_server(folder: Path) -> None:
    with serving(lambda *_: say({"hello": 1})) as server:
        engine = OpenAIEngine({"reference_url": server.url})
        with pytest.raises(EngineError, match="lists no models at /v1/models"):
            engine.identify(LoadSpec(model=str(folder), kv=PLAIN, max_tokens=50))


def test_a_server_that_computes_no_model(folder: Path, tmp_path: Path) -> None:
    with (
        two(folder, tmp_path, other={"sane": False}) as run,
        run.load(PLAIN),
        pytest.raises(EngineError, match="llama-server b1 returned garbage under ctk=q8_0,ctv=q4_0"),
    ):
        run.load(SMALL).__enter__()


def test_a_context_that_is_too_short(folder: Path, tmp_path: Path) -> None:
    with two(folder, tmp_path, context=40) as run:
        assert run.engine.context_length(run.model) == 40
        with pytest.raises(ConfigMismatchError, match="takes sequences of 40 tokens, this run needs 41"):
            run.load(PLAIN, 41).__enter__()


# Options.


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "no address is given"),
        ({"url": "http://a:1", "paralel": "2"}, "no option 'paralel'"),
        ({"url": "http://a:1", "parallel": "0"}, "parallel must be a number"),
        ({"url": "nonsense"}, "no URL of a server"),
    ],
)
def test_options_that_mean_nothing_are_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        load_engine("openai", given)


def test_a_key_is_sent_and_never_shown(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFRACT_API_KEY", "sesame")
    engine = OpenAIEngine({"url": "http://u:hidden@127.0.0.1:9"})
    client = engine._client("http://u:hidden@127.0.0.1:9", "the server")
    assert client.headers == {"Authorization": "Bearer sesame"}
    assert "hidden" not in client.name
