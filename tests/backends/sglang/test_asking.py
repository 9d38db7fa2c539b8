"""How a server is asked: what is sent, what is read, and what is no answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from refract.backends._http import Client
from refract.backends._listed import Listing
from refract.backends.sglang.asking import SGLangAsker
from refract.errors import EngineError
from refract.stats.divergence import log_softmax
from tests.backends.fake_http import FakeServer, Reply, say, serving
from tests.backends.sglang.support import EOS, VOCAB, FakeSGLang, running

PROMPT = (5, 17, 3)
TEXT = (5, 17, 3, 44, 81, 12, 9)


def asker(server: FakeServer) -> SGLangAsker:
    return SGLangAsker(client=Client(url=server.url, patience_s=0.0), eos_ids=frozenset({EOS}), vocab_size=VOCAB)


def exact(fake: FakeSGLang, found: Listing, start: int, *, compressed: bool) -> None:
    """The listing holds what the stand-in's model says at every place."""
    for row, token in enumerate(found.tokens):
        own = log_softmax(fake.logits(TEXT[: start + row], compressed=compressed))
        assert found.logprobs[row] == pytest.approx(own[token], abs=1e-5)
        assert found.listed.logprobs[row].tolist() == pytest.approx(np.sort(own)[::-1][:8].tolist(), abs=1e-5)


def test_a_continuation_is_greedy_and_ends_with_the_end() -> None:
    with running() as (fake, server):
        found = asker(server).generate(PROMPT, 40, 4)
        context = list(PROMPT)
        for token in found.tokens:
            assert token == int(fake.logits(context, compressed=True).argmax())
            context.append(token)
        assert found.ended == (found.tokens[-1] == EOS)
        assert found.listing is not None
        assert found.listing.listed.ids[:, 0].tolist() == list(found.tokens)
        body = server.asked[-1][1]
    assert body is not None
    sent = body["sampling_params"]
    assert sent["temperature"] == 0.0
    assert sent["repetition_penalty"] == 1.0  # models bring others in generation_config.json
    assert sent["stop_token_ids"] == [EOS]


def test_nothing_is_listed_where_nothing_is_asked() -> None:
    with running() as (_, server):
        assert asker(server).generate(PROMPT, 3, 0).listing is None
        body = server.asked[-1][1]
    assert body is not None
    assert body["return_logprob"] is False


@pytest.mark.parametrize("flat", ["", "lists", "b64"])
def test_a_prompt_read_at_once_is_listed_from_its_start_on(flat: str) -> None:
    with running(flat=flat) as (fake, server):
        found = asker(server).read(TEXT, 3, 8)
        assert found.tokens == TEXT[3:]
        exact(fake, found, 3, compressed=True)


def test_steps_read_all_but_the_newest_token_from_the_cache() -> None:
    with running(kv_type="fp8_e4m3", reads_cache=False, attention="triton") as (fake, server):
        found = asker(server).force(TEXT[:3], TEXT[3:], 8)
        assert found.tokens == TEXT[3:]
        exact(fake, found, 3, compressed=True)
        bodies = [body for path, body in server.asked if path == "/generate" and body]
    assert [body["input_ids"] for body in bodies] == [list(TEXT[:i]) for i in range(2, 7)]
    assert len({body["extra_key"] for body in bodies}) == 1


def test_every_request_has_a_cache_of_its_own() -> None:
    with running() as (_, server):
        own = asker(server)
        first = own.force(TEXT[:3], TEXT[3:], 8)
        again = own.force(TEXT[:3], TEXT[3:], 8)
        own.generate(TEXT, 2, 1)
        own.read(TEXT, 2, 8)
        assert np.array_equal(first.listed.logprobs, again.listed.logprobs)
        keys = {body["extra_key"] for path, body in server.asked if path == "/generate" and body}
    assert len(keys) == 4


def test_a_server_that_shares_prefixes_between_requests_is_an_error() -> None:
    with running(keys=False) as (_, server):
        own = asker(server)
        own.generate(PROMPT, 2, 1)
        with pytest.raises(EngineError, match="took 2 tokens from its prefix cache where 0") as caught:
            own.generate(PROMPT, 2, 1)
    assert "newer SGLang" in str(caught.value.hint)


@pytest.mark.parametrize("settings", [{"radix": False}, {"page_size": 4}])
def test_a_server_that_cannot_be_read_in_steps_is_an_error(settings: Mapping[str, Any]) -> None:
    with running(**settings) as (_, server), pytest.raises(EngineError, match="prefix cache where") as caught:
        asker(server).force(TEXT[:3], TEXT[3:], 8)
    assert "--page-size 1" in str(caught.value.hint)


def _altered(change: Mapping[str, Any]) -> Any:
    fake = FakeSGLang()

    def answer(path: str, body: Mapping[str, Any] | None) -> Reply:
        assert body is not None
        whole = fake.generate(body)
        return say({**whole, "meta_info": {**whole["meta_info"], **change}})

    return answer


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"input_top_logprobs": None}, "should have 5 entries, found none"),
        ({"input_top_logprobs": [None, [[-1.0, 3, None]]]}, "found 2 entries"),
        ({"input_top_logprobs": [None, *[[[-1.0, 3, None]]] * 4]}, "1 tokens are listed instead of 8"),
        ({"input_top_logprobs": [None, *[[["x", 3, None]] * 8] * 4]}, "not as expected"),
        ({"input_token_logprobs": [[None, 3, None], *[[-1.0, 7, None]] * 4]}, "other tokens than it was sent"),
        ({"input_top_logprobs_shape": [3, 8], "input_top_logprobs_null_prefix": 1}, "flat lists are not as expected"),
    ],
)
def test_lists_that_are_not_what_was_asked_for_are_errors(change: Mapping[str, Any], words: str) -> None:
    with serving(_altered(change)) as server, pytest.raises(EngineError, match=words):
        asker(server).read(TEXT, 3, 8)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"output_ids": [4, VOCAB]}, "outside the vocabulary of 259"),
        ({"output_ids": [4, -1]}, "outside the vocabulary of 259"),
        (
            {"output_ids": [4], "meta_info": {"finish_reason": {"type": "abort", "message": "no memory"}}},
            r"stopped \(abort: no memory\) after 1 of 2 tokens",
        ),
        ({"output_ids": []}, r"stopped \(None\) after 0 of 2 tokens"),
        ({"meta_info": {"id": "refract-other"}}, "gave the answer to another request"),
        ({"meta_info": {"prompt_tokens": 4}}, "of 4 tokens where 3 were sent"),
    ],
)
def test_a_continuation_that_is_not_what_was_asked_for_is_an_error(changes: Mapping[str, Any], words: str) -> None:
    answer = {"output_ids": [4, 5], "meta_info": {}, **changes}
    with serving(lambda path, body: say(answer)) as server, pytest.raises(EngineError, match=words) as caught:
        asker(server).generate(PROMPT, 2, 0)
    assert "\n" not in caught.value.message


def test_what_is_not_finite_stays_so() -> None:
    rows = [None, *[[[None, token, None] for token in range(8)] for _ in TEXT[3:]]]
    with serving(_altered({"input_top_logprobs": rows})) as server:
        found = asker(server).read(TEXT, 3, 8)
    assert np.isnan(found.listed.logprobs).all()


@pytest.mark.parametrize("answer", [{"text": "hello"}, ["x"], {"output_ids": None, "meta_info": {}}])
def test_an_answer_without_ids_is_an_error(answer: object) -> None:
    with serving(lambda path, body: say(answer)) as server, pytest.raises(EngineError, match="without token ids"):
        asker(server).generate(PROMPT, 2, 0)
