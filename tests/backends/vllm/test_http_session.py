"""Running vLLM servers: the KV type each really keeps decides, one server at a time or two, and never one for both."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from refract.backends import load_engine
from refract.backends.vllm.http_session import HTTPVLLM
from refract.backends.vllm.kvtypes import effective_type
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
from refract.work import (
    Answer,
    Base,
    CompareBase,
    Divergence,
    Failure,
    Generate,
    Generation,
    Request,
    Window,
    WriteBase,
)
from tests.backends.fake_http import Reply, say, serving
from tests.backends.toy_server import Toy, model_folder

PLAIN, SMALL = parse_kv("ctk=f16,ctv=f16"), parse_kv("ctk=fp8_e4m3,ctv=fp8_e4m3")
WINDOW = Window(tokens=tuple(range(40, 52)), start=6)
VALUES = 4 * 2 * 2 * 16  # layers, heads, sides, head dimension of the toy


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("toy") / "model")


def keeps(name: str, **labels: str) -> dict[str, str]:
    """What a server that keeps its cache as `name` says in /metrics."""
    more = {"kv_cache_dtype_skip_layers": "[]", "enable_prefix_caching": "False", "block_size": "16"}
    return {**more, "cache_dtype": name, **labels}


def vllm(folder: Path, kv: KVConfig, **rest: Any) -> Toy:
    started = "1.25" if kv == PLAIN else "2.25"
    values = {"kind": "vllm", "build": "0.32.0", "started": started, "cache": keeps(effective_type(kv))}
    return Toy(folder=folder, **{**values, "noise": 0.0 if kv == PLAIN else 0.3, **rest})


def load(engine: HTTPVLLM, folder: Path, kv: KVConfig, tmp_path: Path, tokens: int = 100) -> Any:
    return engine.load(LoadSpec(model=str(folder), kv=kv, max_tokens=tokens), BlobFolder(tmp_path / "blobs"))


def ask(session: Session, *requests: Request) -> list[Answer | Failure]:
    found = dict(session.run(requests))
    return [found[request] for request in requests]


@contextmanager
def both(
    folder: Path, tmp_path: Path, reference: Toy | None = None, candidate: Toy | None = None, **options: str
) -> Iterator[HTTPVLLM]:
    with (
        serving(reference or vllm(folder, PLAIN)) as first,
        serving(candidate or vllm(folder, SMALL)) as second,
    ):
        urls = {"reference_url": first.url, "candidate_url": second.url, "patience_s": "1", **options}
        yield HTTPVLLM(urls, tmp_path / "cache")


# Two servers.


def test_each_side_is_answered_by_its_own_server(folder: Path, tmp_path: Path) -> None:
    with both(folder, tmp_path) as engine:
        engine.check_kv(str(folder), PLAIN)
        engine.check_kv(str(folder), SMALL)
        with load(engine, folder, PLAIN, tmp_path) as reference:
            (base,) = ask(reference, WriteBase(windows=(WINDOW,), protocol="decode"))
            assert isinstance(base, Base)
            request = CompareBase(windows=(WINDOW,), protocol="decode", base=base.blob)
            (same,) = ask(reference, request)
        with load(engine, folder, SMALL, tmp_path) as candidate:
            (found,) = ask(candidate, request)
    assert isinstance(same, Divergence)
    assert isinstance(found, Divergence)
    assert (same.kl == 0.0).all()
    assert (found.kl > 0.0).all()


def test_only_the_decode_path_is_scored(folder: Path, tmp_path: Path) -> None:
    with both(folder, tmp_path) as engine:
        found = engine.capabilities(SMALL)
    assert Capability.KL_DECODE in found
    assert Capability.KL_PREFILL not in found  # it may attend to keys that are not compressed
    assert Capability.KL_DEEP not in found


def test_the_cache_is_what_the_server_says(folder: Path, tmp_path: Path) -> None:
    width = VALUES * 4 * 16
    auto = keeps(effective_type(PLAIN), kv_cache_memory_bytes=str(10 * width + 5), num_gpu_blocks="10")
    small = keeps("fp8_e4m3", enable_prefix_caching="True")
    toys = vllm(folder, PLAIN, cache=auto), vllm(folder, SMALL, cache=small)
    with (
        both(folder, tmp_path, *toys) as engine,
        load(engine, folder, PLAIN, tmp_path) as reference,
        load(engine, folder, SMALL, tmp_path) as candidate,
    ):
        plain, compressed = reference.effective_kv, candidate.effective_kv
    assert (plain.layers, plain.layers_compressed) == (4, 0)
    assert plain.bytes_per_token == VALUES * 4  # as many blocks fit as do at 4 bytes a value
    assert (compressed.k, compressed.v, compressed.layers_compressed) == ("fp8_e4m3", "fp8_e4m3", 4)
    assert compressed.bytes_per_token == VALUES
    notes = " ".join(compressed.notes)
    assert "read from the server" in notes
    assert "every text has a salt of its own" in notes


def test_another_kv_type_than_asked_is_refused(folder: Path, tmp_path: Path) -> None:
    swapped = vllm(folder, SMALL, cache=keeps("fp8_e5m2"))
    with (
        both(folder, tmp_path, candidate=swapped) as engine,
        pytest.raises(ConfigMismatchError, match="keeps fp8_e5m2, and fp8_e4m3 is asked for") as caught,
    ):
        load(engine, folder, SMALL, tmp_path).__enter__()
    assert "--kv-cache-dtype fp8_e4m3" in (caught.value.hint or "")


def test_layers_that_are_spared_without_being_asked_are_refused(folder: Path, tmp_path: Path) -> None:
    spared = vllm(folder, SMALL, cache=keeps("fp8_e4m3", kv_cache_dtype_skip_layers="['0', '3']"))
    with (
        both(folder, tmp_path, candidate=spared) as engine,
        pytest.raises(ConfigMismatchError, match="spares no layer, the server spares layers 0, 3") as caught,
    ):
        load(engine, folder, SMALL, tmp_path).__enter__()
    assert "boundary=N" in (caught.value.hint or "")


def test_names_that_mean_the_same_are_the_same(folder: Path, tmp_path: Path) -> None:
    with (
        both(folder, tmp_path, candidate=vllm(folder, SMALL, cache=keeps("fp8"))) as engine,
        load(engine, folder, SMALL, tmp_path) as session,
    ):
        assert session.effective_kv.k == "fp8_e4m3"


def test_two_addresses_of_one_process_are_refused(folder: Path, tmp_path: Path) -> None:
    toy = vllm(folder, PLAIN)
    with both(folder, tmp_path, toy, toy) as engine, pytest.raises(UsageError, match="are one process"):
        engine.check_kv(str(folder), SMALL)
    with pytest.raises(UsageError, match="one server cannot be both"):
        HTTPVLLM({"reference_url": "http://localhost:8000/v1", "candidate_url": "http://127.0.0.1:8000"})


@pytest.mark.parametrize("other", [{"build": "0.33.0"}, {"most": 20}, {"forces": True}])
def test_servers_that_differ_in_more_than_their_cache_are_refused(
    folder: Path, tmp_path: Path, other: dict[str, Any]
) -> None:
    with (
        both(folder, tmp_path, candidate=vllm(folder, SMALL, **other)) as engine,
        pytest.raises(ConfigMismatchError, match="the two servers differ in"),
    ):
        engine.check_kv(str(folder), SMALL)


def test_a_configuration_that_is_neither_side_is_refused(folder: Path, tmp_path: Path) -> None:
    sides = {"reference_kv": str(PLAIN), "candidate_kv": str(SMALL)}
    with (
        both(folder, tmp_path, **sides) as engine,
        pytest.raises(KVUnsupportedError, match="has no server"),
    ):
        engine.check_kv(str(folder), parse_kv("ctk=fp8_e5m2,ctv=fp8_e5m2"))


# One address, one side after the other.


def test_one_address_serves_the_reference_first_and_then_the_candidate(folder: Path, tmp_path: Path) -> None:
    plain, small = vllm(folder, PLAIN), vllm(folder, SMALL)
    running = [plain]
    spec = LoadSpec(model=str(folder), kv=PLAIN, max_tokens=100)
    with serving(lambda path, body: running[0](path, body)) as server:
        urls = {"url": server.url, "reference_kv": str(PLAIN), "candidate_kv": str(SMALL)}
        engine = HTTPVLLM(urls, tmp_path)
        engine.check_kv(str(folder), SMALL)
        own = engine.identify(spec)
        with load(engine, folder, PLAIN, tmp_path) as session:
            (base,) = ask(session, WriteBase(windows=(WINDOW,), protocol="decode"))
        with pytest.raises(IncompleteError, match="and fp8_e4m3 is asked for") as caught:
            load(engine, folder, SMALL, tmp_path).__enter__()
        assert caught.value.exit_code == 5
        assert "start vllm serve with --kv-cache-dtype fp8_e4m3" in (caught.value.hint or "")
        assert "run the same command again" in (caught.value.hint or "")
        running[0] = small
        again = HTTPVLLM(urls, tmp_path)
        assert again.identify(spec) == own
        assert isinstance(base, Base)
        with load(again, folder, SMALL, tmp_path) as session:
            (found,) = ask(session, CompareBase(windows=(WINDOW,), protocol="decode", base=base.blob))
    assert isinstance(found, Divergence)
    assert (found.kl > 0.0).all()


def test_several_candidates_take_turns_at_one_address(folder: Path, tmp_path: Path) -> None:
    other = parse_kv("ctk=fp8_e5m2,ctv=fp8_e5m2")
    with both(folder, tmp_path, reference_kv=str(PLAIN), candidate_kv=f"{SMALL};{other}") as engine:
        with load(engine, folder, SMALL, tmp_path):
            pass
        with pytest.raises(IncompleteError, match="fp8_e5m2 is asked for"):
            load(engine, folder, other, tmp_path).__enter__()


def test_a_side_without_an_address(folder: Path, tmp_path: Path) -> None:
    with serving(vllm(folder, PLAIN)) as server:
        engine = HTTPVLLM({"reference_url": server.url}, tmp_path)
        with pytest.raises(IncompleteError, match="the answers of the candidate are missing"):
            load(engine, folder, SMALL, tmp_path).__enter__()


def test_a_server_that_is_gone_is_remembered(folder: Path, tmp_path: Path) -> None:
    spec = LoadSpec(model=str(folder), kv=PLAIN, max_tokens=100)
    with serving(vllm(folder, PLAIN)) as server:
        urls = {"url": server.url, "patience_s": "1"}
        own = HTTPVLLM(urls, tmp_path).identify(spec)
    assert HTTPVLLM(urls, tmp_path).identify(spec) == own
    with pytest.raises(IncompleteError, match="is gone while answering"):
        HTTPVLLM(urls, tmp_path / "elsewhere").identify(spec)


# Faults.


def refusing_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_server_that_is_not_there(folder: Path) -> None:
    engine = HTTPVLLM({"url": f"http://127.0.0.1:{refusing_port()}", "patience_s": "1"})
    assert [check.status for check in engine.check(str(folder))] == ["ok", "fail"]
    with pytest.raises(IncompleteError, match="the connection is refused"):
        engine.context_length(str(folder))


@pytest.mark.parametrize(
    ("reply", "error", "said"),
    [
        (Reply(body=b'{"choices": [{"text": "abc'), EngineError, "something that is not JSON"),
        (Reply(body=b'{"choices": [1, 2, 3]}' * 9, cut=20), IncompleteError, "is gone while answering"),
        (Reply(body=b"<html>log in</html>", kind="text/html"), EngineError, "something that is not JSON"),
        (Reply(wait_s=3.0), EngineError, "did not answer /v1/completions within 1 s"),
        (say({"id": "cmpl-other", "choices": []}), EngineError, "without the one choice that was asked for"),
        (say({"id": "cmpl-other", "choices": [{"token_ids": [5]}]}), EngineError, "the answer to another request"),
        (say({"choices": [{"token_ids": [5]}], "usage": {"prompt_tokens": 9}}), EngineError, "a prompt of 9 tokens"),
        (say({"choices": [{"token_ids": [5, 99999], "finish_reason": "length"}]}), EngineError, "outside the voc"),
        (say({"choices": [{"token_ids": [5, 6], "finish_reason": "abort"}]}), EngineError, "stopped (abort) after 2"),
    ],
)
def test_a_server_that_misbehaves(
    folder: Path, tmp_path: Path, reply: Reply, error: type[RefractError], said: str
) -> None:
    toy = vllm(folder, PLAIN)

    def answer(path: str, body: Any) -> Reply:
        return reply if body is not None and body.get("max_tokens") == 7 else toy(path, body)

    with serving(answer) as server:
        engine = HTTPVLLM({"url": server.url, "timeout_s": "1", "patience_s": "1"})
        with load(engine, folder, PLAIN, tmp_path) as session, pytest.raises(error) as caught:
            ask(session, Generate(prompt=(5,), max_new_tokens=7))
    assert said in caught.value.message


def test_500_is_the_failure_of_one_request_and_503_is_waited_for(folder: Path, tmp_path: Path) -> None:
    toy, busy = vllm(folder, PLAIN), [Reply(status=503)] * 2

    def answer(path: str, body: Any) -> Reply:
        if busy:
            return busy.pop()
        wrong = body is not None and body.get("max_tokens") == 7
        return say({"error": {"message": "Internal server error"}}, status=500) if wrong else toy(path, body)

    with serving(answer) as server:
        engine = HTTPVLLM({"url": server.url, "patience_s": "20"})
        with load(engine, folder, PLAIN, tmp_path) as session:
            failed, fine = ask(
                session, Generate(prompt=(5,), max_new_tokens=7), Generate(prompt=(5,), max_new_tokens=2)
            )
    assert isinstance(failed, Failure)
    assert isinstance(fine, Generation)


def test_ids_outside_the_vocabulary_are_never_sent(folder: Path, tmp_path: Path) -> None:
    with serving(vllm(folder, PLAIN)) as server:
        engine = HTTPVLLM({"url": server.url})
        with load(engine, folder, PLAIN, tmp_path) as session:
            before = len(server.asked)
            (found,) = ask(session, Generate(prompt=(5, 99999), max_new_tokens=1))
            assert len(server.asked) == before
    assert isinstance(found, Failure)
    assert found.kind == "invalid-token"


def test_a_server_that_computes_no_model(folder: Path, tmp_path: Path) -> None:
    with (
        both(folder, tmp_path, candidate=vllm(folder, SMALL, sane=False)) as engine,
        pytest.raises(EngineError, match="vLLM returned garbage under fp8_e4m3"),
    ):
        load(engine, folder, SMALL, tmp_path).__enter__()


def test_a_context_that_is_too_short(folder: Path, tmp_path: Path) -> None:
    with serving(vllm(folder, PLAIN, context=40)) as server:
        engine = HTTPVLLM({"url": server.url})
        assert engine.context_length(str(folder)) == 40
        with pytest.raises(ConfigMismatchError, match="takes sequences of 40 tokens, this run needs 41"):
            load(engine, folder, PLAIN, tmp_path, tokens=41).__enter__()


# The engine's front door.


def test_an_address_makes_the_vllm_backend_ask_a_running_server(folder: Path, tmp_path: Path) -> None:
    with serving(vllm(folder, PLAIN)) as server:
        engine = load_engine("vllm", {"url": server.url}, tmp_path)
        own = engine.identify(LoadSpec(model=str(folder), kv=PLAIN, max_tokens=100))
    assert (own.engine, own.build, own.options["way"]) == ("vllm", "0.32.0", "server")
    assert server.url not in repr(own)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "no address"),
        ({"url": "http://a:1", "dtype": "float32"}, "no option 'dtype'"),
        ({"url": "http://a:1", "top_k": "x"}, "top_k must be a number"),
    ],
)
def test_options_that_mean_nothing_are_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        HTTPVLLM(given)
