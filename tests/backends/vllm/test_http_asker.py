"""What is read from a running vLLM server and how it is made to decode given tokens, by a toy model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refract.backends._http import Client, RefusedError
from refract.backends._listed import compare_listings
from refract.backends.vllm.http_asker import VLLMAsker
from refract.backends.vllm.http_facts import ServerFacts, cache_config, read_facts, start_time
from refract.errors import ConfigMismatchError, EngineError
from tests.backends.fake_http import FakeServer, Reply, serving
from tests.backends.toy_server import Toy, model_folder

CACHE = {
    "block_size": "16",
    "cache_dtype": "fp8_e4m3",
    "enable_prefix_caching": "True",
    "kv_cache_dtype_skip_layers": "['0', '3']",
    "kv_cache_memory_bytes": "65536",
    "num_gpu_blocks": "8",
}
# As vLLM 0.32.0 writes it on a CPU, shortened.
LINE = (
    'vllm:cache_config_info{block_size="128",cache_dtype="auto",enable_prefix_caching="True",engine="0",'
    'kv_cache_dtype_skip_layers="[]",kv_cache_memory_bytes="268435456",num_gpu_blocks="45"} 1.0\n'
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("toy") / "model")


def client(url: str) -> Client:
    return Client(url=url, name="the vLLM server", timeout_s=20.0, patience_s=0.2)


def vllm(folder: Path, **rest: Any) -> Toy:
    return Toy(folder=folder, **{"kind": "vllm", "cache": CACHE, "started": "3.25", "build": "0.32.0", **rest})


def facts(toy: Toy, *, model: str = "", wanted: int = 1000) -> ServerFacts:
    with serving(toy) as server:
        return read_facts(client(server.url), toy.tokenizer, model=model, wanted=wanted)


@contextmanager
def asking(toy: Toy) -> Iterator[tuple[VLLMAsker, FakeServer]]:
    with serving(toy) as server:
        yield (
            VLLMAsker(client=client(server.url), tokenizer=toy.tokenizer, model="toy", forces=toy.forces),
            server,
        )


# Facts.


def test_a_server_says_how_it_keeps_its_cache(folder: Path) -> None:
    found = facts(vllm(folder))
    assert found == ServerFacts(
        version="0.32.0",
        model="toy",
        context=256,
        cache_dtype="fp8_e4m3",
        skipped=("0", "3"),
        prefix_caching=True,
        block_size=16,
        blocks=8,
        memory_bytes=65536,
        started="3.25",
        listed=288,
        forces=False,
    )
    assert found.lasting == {"version": "0.32.0", "context": "256", "listed": "288", "forces": "False"}


def test_the_line_as_vllm_writes_it() -> None:
    found = cache_config(f'# HELP x\nother{{a="b"}} 2\n{LINE}', "vLLM")
    assert (found["cache_dtype"], found["kv_cache_dtype_skip_layers"]) == ("auto", "[]")
    assert cache_config(LINE + LINE.replace('engine="0"', 'engine="1"'), "vLLM")["engine"] == "0"


def test_a_server_that_does_not_say_is_refused() -> None:
    for text in ("", "vllm:cache_config_info 1.0\n", 'vllm:cache_config_info{block_size="1"} 1.0\n'):
        with pytest.raises(EngineError, match="does not say in /metrics"):
            cache_config(text, "vLLM")
    with pytest.raises(EngineError, match="engines whose KV types differ"):
        cache_config(LINE + LINE.replace('"auto"', '"fp8"'), "vLLM")


def test_shorter_lists_where_long_ones_are_refused(folder: Path) -> None:
    assert facts(vllm(folder, most=20)).listed == 20
    assert facts(vllm(folder), wanted=50).listed == 50
    with pytest.raises(EngineError, match="lists no probable tokens by id"):
        facts(vllm(folder, most=5))


def test_a_logits_processor_that_forces_is_found(folder: Path) -> None:
    assert facts(vllm(folder, forces=True)).forces


def test_another_model_or_engine_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigMismatchError, match="tokenises a text as"):
        facts(vllm(folder, shift=1))
    with pytest.raises(EngineError, match="does not serve other"):
        facts(vllm(folder), model="other")
    with pytest.raises(EngineError, match="is no vLLM: its models are owned by llamacpp"):
        facts(Toy(folder=folder, kind="llamacpp"))


def test_a_start_time_is_optional() -> None:
    with serving(lambda *_: Reply(body=b"x 1\nprocess_start_time_seconds 1.7e+09\n")) as server:
        assert start_time(client(server.url)) == "1.7e+09"
    with serving(lambda *_: Reply(status=404)) as server:
        assert start_time(client(server.url)) is None


# Asking.


def test_a_continuation_is_the_models_greedy_one(folder: Path) -> None:
    toy, wanted = vllm(folder), list[int]()
    for _ in range(9):
        wanted.append(int(np.argmax(toy.logprobs([5, 6, *wanted]))))
    with asking(toy) as (asker, server):
        found, bare = asker.generate((5, 6), 9, 4), asker.generate((5, 6), 9, 0)
        ended = asker.generate((5, 6), 60, 2)
    assert found.tokens == bare.tokens == tuple(wanted)
    assert found.listing is not None
    assert bare.listing is None
    assert found.listing.listed.ids[:, 0].tolist() == wanted
    assert ended.ended
    assert ended.tokens[-1] == 1
    assert len(ended.tokens) == 29 - 2 + 1
    assert len({body["cache_salt"] for _, body in server.asked if body}) == 3
    assert all(body["repetition_penalty"] == 1.0 for _, body in server.asked if body)


@pytest.mark.parametrize("tokens", [(70, 9, 71), (70, 70, 9), (70, 1), (70, 1, 9), (1,), (70,)])
@pytest.mark.parametrize("forces", [False, True])
def test_forced_tokens_have_the_models_own_probabilities(folder: Path, tokens: tuple[int, ...], forces: bool) -> None:
    toy = vllm(folder, forces=forces)
    with asking(toy) as (asker, server):
        found = asker.force((5, 6), tokens, 6)
    expected = [toy.logprobs([5, 6, *tokens[:i]])[token] for i, token in enumerate(tokens)]
    np.testing.assert_allclose(found.logprobs, expected, rtol=1e-6)
    assert found.tokens == tokens
    assert found.listed.ids.shape == (len(tokens), 6)
    assert len(server.asked) == (1 if forces else len(tokens))
    assert len({body["cache_salt"] for _, body in server.asked if body}) == 1


def test_every_position_but_the_first_is_a_decode_step(folder: Path) -> None:
    with asking(vllm(folder)) as (asker, server):
        asker.force((5, 6), (70, 9, 71), 6)
    bodies = [body for _, body in server.asked if body]
    assert [(body["prompt"], body["max_tokens"]) for body in bodies] == [([5, 6], 1), ([5, 6], 2), ([5, 6, 70], 2)]
    assert not any("prompt_logprobs" in body for body in bodies)


def test_a_prompt_is_read_in_one_pass(folder: Path) -> None:
    toy = vllm(folder)
    with asking(toy) as (asker, server):
        found = asker.read((5, 6, 70, 9, 71), 2, 6)
        forced = asker.force((5, 6), (70, 9, 71), 6)
    assert server.asked[0][1] is not None
    assert server.asked[0][1]["prompt_logprobs"] == 6
    assert found.tokens == (70, 9, 71)
    assert np.all(compare_listings(found, forced).kl == 0.0)


def test_the_noise_of_a_cache_is_seen(folder: Path) -> None:
    means = []
    for noise in (0.0, 0.05, 0.5):
        with asking(vllm(folder)) as (reference, _), asking(vllm(folder, noise=noise)) as (candidate, _):
            tokens = tuple(range(40, 50))
            divergence = compare_listings(reference.force((5,), tokens, 99), candidate.force((5,), tokens, 99))
            means.append(float(divergence.kl.mean()))
    assert means[0] == 0.0 < means[1] < means[2]


def test_a_server_that_writes_something_else_is_refused(folder: Path) -> None:
    toy = vllm(folder)

    def deaf(path: str, body: Any) -> Reply:
        return toy(path, {key: value for key, value in (body or {}).items() if key != "allowed_token_ids"})

    with serving(deaf) as server:
        asker = VLLMAsker(client=client(server.url), tokenizer=toy.tokenizer, model="toy")
        with pytest.raises(EngineError, match=r"where \(70,\) were forced"):
            asker.force((5, 6), (70, 9), 4)


def test_ids_are_needed(folder: Path) -> None:
    with asking(vllm(folder, kind="sglang")) as (asker, _), pytest.raises(EngineError, match="without token ids"):
        asker.generate((5, 6), 2, 0)


def test_what_is_refused_is_the_servers_word(folder: Path) -> None:
    with (
        asking(vllm(folder, most=3)) as (asker, _),
        pytest.raises(RefusedError, match="at most 3 log-probabilities"),
    ):
        asker.generate((5, 6), 2, 4)
