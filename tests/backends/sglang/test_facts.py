"""What servers say of themselves, and what follows from it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from refract.backends._http import Client
from refract.backends.sglang.facts import ask_facts, difference, from_text, read_facts
from refract.backends.sglang.kvtypes import CacheShape, check_supported, effective_kv, serves, stored_type
from refract.errors import ConfigMismatchError, EngineError, IncompleteError, KVUnsupportedError
from refract.kv import parse_kv
from tests.backends.fake_http import Reply, say, serving
from tests.backends.sglang.support import BYTES, HEADS, LAYERS, WIDTH, FakeSGLang, running

SHAPE = CacheShape(layers=LAYERS, values=2 * HEADS * WIDTH, dtype="bfloat16")
E4M3, PLAIN = parse_kv("ctk=fp8_e4m3,ctv=fp8_e4m3"), parse_kv("ctk=f16,ctv=f16")


def facts(**settings: Any) -> Any:
    fake = FakeSGLang(**settings)
    return read_facts(fake.info(), {"model_path": fake.model})


def test_a_server_says_what_it_is() -> None:
    with running(kv_type="fp8_e5m2", model="/models/small") as (_, server):
        found = ask_facts(Client(url=server.url, patience_s=0.0))
    assert (found.version, found.kv_type, found.dtype) == ("0.5.15.post1", "fp8_e5m2", "float32")
    assert (found.attention, found.model_path) == ("torch_native", "/models/small")
    assert found.prefill_reads_cache
    assert found.steps
    assert from_text(found.as_text()) == found
    assert from_text({"version": "1"}) is None
    assert from_text(None) is None


def test_older_servers_have_other_paths() -> None:
    fake = FakeSGLang()

    def answer(path: str, body: object) -> Reply:
        return say(fake.info()) if path.startswith("/get_") else say({"error": "no"}, status=404)

    with serving(answer) as server:
        assert ask_facts(Client(url=server.url, patience_s=0.0)).version == "0.5.15.post1"


@pytest.mark.parametrize(
    ("reply", "error", "words"),
    [
        (say({"object": "list"}), EngineError, "neither its version nor its KV type"),
        (say([1]), EngineError, "with no object"),
        (say({}, status=404), EngineError, "which every SGLang server has"),
        (Reply(body=b"<html>", kind="text/html"), EngineError, "not JSON"),
        (say({"error": "oh"}, status=500), EngineError, "status 500"),
        (Reply(body=b'{"version": 1}', cut=5), IncompleteError, "closed the connection"),
    ],
)
def test_what_is_no_sglang_server_is_an_error(reply: Reply, error: type[Exception], words: str) -> None:
    with serving(lambda path, body: reply) as server, pytest.raises(error, match=words):
        ask_facts(Client(url=server.url, patience_s=0.0))


def test_a_server_that_is_not_there_is_an_error() -> None:
    with serving(lambda path, body: say({})) as server:
        url = server.url
    with pytest.raises(IncompleteError, match="refused"):
        ask_facts(Client(url=url, patience_s=0.0))


@pytest.mark.parametrize("attention", ["triton", "flashinfer", "fa3", "intel_amx", "something_new"])
def test_only_backends_known_to_read_their_cache_are_read_in_one_pass(attention: str) -> None:
    assert not facts(attention=attention).prefill_reads_cache


def test_a_backend_for_prompts_of_its_own_counts() -> None:
    assert not facts(extra={"prefill_attention_backend": "triton"}).prefill_reads_cache
    assert facts(extra={"prefill_attention_backend": "torch_native"}).prefill_reads_cache


@pytest.mark.parametrize("settings", [{"radix": False}, {"page_size": 64}])
def test_steps_need_a_prefix_cache_of_single_tokens(settings: dict[str, Any]) -> None:
    assert not facts(**settings).steps


def test_servers_of_one_run_may_differ_in_their_kv_type_alone() -> None:
    own = facts()
    assert difference(own, facts(kv_type="fp8_e4m3", seed=5)) is None
    assert difference(own, facts(version="0.5.16")) == "version is 0.5.15.post1 and 0.5.16"
    assert "attention_backend is torch_native and triton" in str(difference(own, facts(attention="triton")))
    assert difference(own, facts(extra={"quantization": "fp8"})) == "quantization is not set and fp8"
    assert difference(own, facts(extra={"context_length": 512})) is None


def test_two_servers_are_told_apart_and_one_is_known_again() -> None:
    busy = facts(extra={"internal_states": [{"last_gen_throughput": 3.0}], "status": "busy"})
    assert facts().instance == busy.instance
    assert facts().instance != facts(seed=2).instance


@pytest.mark.parametrize(
    ("asked", "dtype", "model", "stored"),
    [
        ("auto", "float32", "bfloat16", "f32"),
        ("auto", "auto", "bfloat16", "bf16"),
        ("auto", "auto", "float16", "f16"),
        ("auto", "auto", "float32", "f16"),  # SGLang runs float32 weights in float16 unless told otherwise
        ("bfloat16", "float32", "float32", "bf16"),
        ("fp8_e5m2", "auto", "bfloat16", "fp8_e5m2"),
        ("fp4_e2m1", "auto", "bfloat16", "fp4_e2m1"),
    ],
)
def test_the_stored_type_of_auto_is_the_models(asked: str, dtype: str, model: str, stored: str) -> None:
    found = replace(facts(), kv_type=asked, dtype=dtype)
    assert stored_type(found, replace(SHAPE, dtype=model)) == stored


def test_f16_is_the_uncompressed_cache_and_every_other_type_itself() -> None:
    assert serves(PLAIN, facts(), SHAPE)
    assert not serves(PLAIN, facts(kv_type="fp8_e4m3"), SHAPE)
    assert not serves(PLAIN, facts(kv_type="bf16"), SHAPE)
    assert serves(parse_kv("ctk=f32,ctv=f32"), facts(), SHAPE)
    assert not serves(parse_kv("ctk=bf16,ctv=bf16"), facts(), SHAPE)
    assert serves(E4M3, facts(kv_type="fp8_e4m3"), SHAPE)
    assert not serves(E4M3, facts(kv_type="fp8_e5m2"), SHAPE)


@pytest.mark.parametrize("text", ["ctk=fp8_e4m3,ctv=f16", "ctk=fp8_e4m3,ctv=fp8_e5m2", "ctk=q8_0,ctv=q8_0"])
def test_what_no_server_has_is_refused(text: str) -> None:
    with pytest.raises(KVUnsupportedError) as caught:
        check_supported(parse_kv(text))
    assert caught.value.hint


def test_effective_types_are_the_servers_own_words_and_bytes() -> None:
    plain = effective_kv(PLAIN, facts(), SHAPE)
    assert (plain.k, plain.v, plain.layers_compressed) == ("f32", "f32", 0)
    assert plain.bytes_per_token == LAYERS * 2 * HEADS * WIDTH * BYTES["auto"]
    assert "auto is the model's own type, f32" in plain.notes[0]
    small = effective_kv(E4M3, facts(kv_type="fp8_e4m3"), SHAPE)
    assert (small.k, small.layers, small.layers_compressed) == ("fp8_e4m3", LAYERS, LAYERS)
    assert small.bytes_per_token * 4 == plain.bytes_per_token


def test_a_cache_of_another_size_than_its_type_has_is_refused() -> None:
    """A model that brings a KV type of its own: the server still says "auto"."""
    big = replace(facts(), cache_tokens="1000000", cache_bytes=str(1_000_000 * LAYERS * 2 * HEADS * WIDTH))
    with pytest.raises(ConfigMismatchError, match="32 bytes a token, and f32 should take 128"):
        effective_kv(PLAIN, big, SHAPE)


@pytest.mark.parametrize("change", [{"cache_tokens": "0"}, {"cache_bytes": "5000000", "cache_tokens": "64"}])
def test_a_size_that_cannot_be_told_is_not_held_against_the_server(change: dict[str, str]) -> None:
    assert effective_kv(PLAIN, replace(facts(), **change), SHAPE).k == "f32"
