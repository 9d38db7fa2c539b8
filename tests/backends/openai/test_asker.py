"""What is asked of each kind of server, and what is made of its answers, by a toy model whose numbers are known."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refract.backends._http import Client
from refract.backends._listed import compare_listings
from refract.backends.openai.asker import CompletionsAsker
from refract.backends.openai.offers import Offer, from_facts, look
from refract.backends.openai.text_asker import TextAsker
from refract.errors import ConfigMismatchError, EngineError
from tests.backends.fake_http import FakeServer, serving
from tests.backends.toy_server import Toy, model_folder

KINDS = ("llamacpp", "vllm", "sglang")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("toy") / "model")


def client(url: str) -> Client:
    return Client(url=url, name="the server", timeout_s=20.0, patience_s=0.2)


def offered(toy: Toy, **rest: Any) -> Offer:
    with serving(toy) as server:
        return look(client(server.url), toy.tokenizer, model=rest.pop("model", ""), wanted=rest.pop("wanted", 1000))


@contextmanager
def asking(toy: Toy) -> Iterator[tuple[CompletionsAsker, FakeServer]]:
    with serving(toy) as server:
        offer = look(client(server.url), toy.tokenizer, model="", wanted=1000)
        server.asked.clear()
        yield (
            CompletionsAsker(
                client=client(server.url),
                dialect=offer.dialect,
                model=offer.model,
                vocab_size=toy.vocab,
                eos_ids=toy.tokenizer.eos_ids,
                plain=toy.tokenizer.encode("a")[0],
            ),
            server,
        )


def prompt(toy: Toy, length: int = 5) -> tuple[int, ...]:
    return toy.tokenizer.encode("the keeper counted the ships every evening")[:length]


# What a server offers.


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_with_ids_and_raw_lists_offers_everything(folder: Path, kind: str) -> None:
    toy = Toy(folder=folder, kind=kind)
    offer = offered(toy)
    assert (offer.kind, offer.build, offer.model, offer.context) == (kind, "b1", "toy", 256)
    assert (offer.ids, offer.listed, offer.raw, offer.plain) == (True, toy.vocab, True, False)
    assert offer.tokenizer_compared
    assert from_facts(offer.facts()) == offer


def test_shorter_lists_are_taken_where_long_ones_are_refused(folder: Path) -> None:
    assert offered(Toy(folder=folder, most=20)).listed == 20
    assert offered(Toy(folder=folder, most=3)).listed == 0
    assert offered(Toy(folder=folder), wanted=50).listed == 50


def test_lists_that_a_bias_changes_force_nothing(folder: Path) -> None:
    offer = offered(Toy(folder=folder, biased=True))
    assert offer.listed
    assert not offer.raw


def test_a_server_that_knows_no_other_fields_is_asked_without_them(folder: Path) -> None:
    offer = offered(Toy(folder=folder, kind="sglang", strict=True))
    assert offer.plain
    assert offer.ids


def test_a_server_without_ids_gives_text(folder: Path) -> None:
    offer = offered(Toy(folder=folder, kind="other", ids=False))
    assert (offer.kind, offer.ids, offer.listed, offer.raw) == ("", False, 0, False)
    assert not offer.tokenizer_compared
    assert offer.dialect.cache_rule.startswith("whether the server reuses cached prompts is not known")


def test_another_model_is_told_by_its_tokenizer(folder: Path) -> None:
    with pytest.raises(ConfigMismatchError, match="tokenises a text as"):
        offered(Toy(folder=folder, shift=1))


def test_a_model_is_named_where_there_are_several(folder: Path) -> None:
    toy = Toy(folder=folder, models=("a", "b"))
    with pytest.raises(EngineError, match=r"serves 2 models \(a, b\), one is expected") as caught:
        offered(toy)
    assert "served_model" in (caught.value.hint or "")
    assert offered(toy, model="b").model == "b"


def test_facts_of_something_else_are_no_offer() -> None:
    assert from_facts({}) is None
    assert from_facts({"kind": "vllm", "build": "", "model": "m", "context": "x"}) is None


# Generation.


@pytest.mark.parametrize("kind", KINDS)
def test_a_continuation_is_the_models_greedy_one(folder: Path, kind: str) -> None:
    toy = Toy(folder=folder, kind=kind)
    ids, wanted = prompt(toy), list[int]()
    for _ in range(9):
        wanted.append(int(np.argmax(toy.logprobs([*ids, *wanted]))))
    with asking(toy) as (asker, server):
        found = asker.generate(ids, 9, 4)
        bare = asker.generate(ids, 9, 0)
    assert found.tokens == bare.tokens == tuple(wanted)
    assert not found.ended
    assert bare.listing is None
    assert found.listing is not None
    assert found.listing.listed.ids.shape == (9, 4)
    assert found.listing.listed.ids[:, 0].tolist() == wanted
    expected = [toy.logprobs([*ids, *wanted[:i]])[token] for i, token in enumerate(wanted)]
    np.testing.assert_allclose(found.listing.logprobs, expected, rtol=1e-6)
    assert len(server.asked) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_the_end_of_the_sequence_is_its_last_token(folder: Path, kind: str) -> None:
    toy = Toy(folder=folder, kind=kind)
    with asking(toy) as (asker, _):
        found = asker.generate(prompt(toy), 60, 2)
    assert found.ended
    assert len(found.tokens) == 29 - 5 + 1
    assert found.tokens[-1] == 1
    assert 1 not in found.tokens[:-1]
    assert found.listing is not None
    assert found.listing.tokens == found.tokens


def test_no_prompt_that_is_cached_is_reused(folder: Path) -> None:
    with asking(Toy(folder=folder)) as (asker, server):
        asker.generate((5, 6), 2, 0)
        asker.generate((5, 6), 2, 0)
    assert [body["cache_prompt"] for _, body in server.asked if body] == [False, False]
    with asking(Toy(folder=folder, kind="vllm")) as (asker, server):
        asker.generate((5, 6), 2, 0)
        asker.generate((5, 6), 2, 0)
    salts = [body["cache_salt"] for _, body in server.asked if body]
    assert len(set(salts)) == 2
    assert all(body["repetition_penalty"] == 1.0 and body["temperature"] == 0 for _, body in server.asked if body)


def test_what_llama_server_leaves_out_is_asked_step_by_step(folder: Path) -> None:
    toy = Toy(folder=folder)
    with asking(toy) as (asker, _):
        whole = asker.generate(prompt(toy), 8, 3)
    toy.holes = frozenset(whole.tokens[2:4])
    with asking(toy) as (asker, server):
        found = asker.generate(prompt(toy), 8, 3)
        forced = asker.force(prompt(toy), whole.tokens, 3)
    assert found.tokens == whole.tokens
    assert found.listing is not None
    assert whole.listing is not None
    np.testing.assert_array_equal(found.listing.logprobs, whole.listing.logprobs)
    np.testing.assert_allclose(forced.logprobs, whole.listing.logprobs, rtol=1e-6)
    warm = [body["cache_prompt"] for _, body in server.asked if body]
    assert warm[0] is False
    assert True in warm


# Forcing.


@pytest.mark.parametrize("kind", KINDS)
def test_forced_tokens_have_the_models_own_probabilities(folder: Path, kind: str) -> None:
    toy = Toy(folder=folder, kind=kind)
    ids, tokens = prompt(toy), (70, 9, 70, 1, 200)
    with asking(toy) as (asker, server):
        found = asker.force(ids, tokens, 6)
    expected = [toy.logprobs([*ids, *tokens[:i]])[token] for i, token in enumerate(tokens)]
    np.testing.assert_allclose(found.logprobs, expected, rtol=1e-6)
    assert found.tokens == tokens
    assert found.listed.ids.shape == (5, 6)
    bodies = [body for _, body in server.asked if body]
    assert not any("grammar" in body for body in bodies)  # the end of the sequence is in them, which none holds
    assert len({str(body.get("cache_salt")) for body in bodies}) == 1


def test_a_grammar_forces_in_one_request_where_it_can(folder: Path) -> None:
    toy = Toy(folder=folder)
    with asking(toy) as (asker, server):
        once = asker.force((5, 6), (70, 9, 71), 250)
        assert len(server.asked) == 1
        assert server.asked[0][1] is not None
        assert server.asked[0][1]["grammar"] == "root ::= <[70]> <[9]> <[71]>"
    with asking(Toy(folder=folder, kind="vllm")) as (asker, server):
        steps = asker.force((5, 6), (70, 9, 71), 250)
        bodies = [body for _, body in server.asked if body]
        asked = [(body["prompt"], body["max_tokens"], body["logit_bias"]) for body in bodies]
        assert asked == [  # every position but the first is the second token of a request, which is a decode step
            ([5, 6], 1, {"70": 100.0}),
            ([5, 6], 2, {"70": 100.0}),
            ([5, 6, 70], 2, {"9": 100.0}),
        ]
        assert len({body["cache_salt"] for body in bodies}) == 1
    np.testing.assert_array_equal(once.logprobs, steps.logprobs)
    assert np.all(compare_listings(once, steps).kl == 0.0)


@pytest.mark.parametrize("kind", KINDS)
def test_the_noise_of_a_cache_is_seen_and_nothing_else(folder: Path, kind: str) -> None:
    tokens = tuple(range(40, 60))
    with asking(Toy(folder=folder, kind=kind)) as (asker, _):
        reference, again = asker.force((5, 6), tokens, 100), asker.force((5, 6), tokens, 100)
    means = []
    for noise in (0.05, 0.5):
        with asking(Toy(folder=folder, kind=kind, noise=noise)) as (asker, _):
            means.append(float(compare_listings(reference, asker.force((5, 6), tokens, 100)).kl.mean()))
    assert np.all(compare_listings(reference, again).kl == 0.0)
    assert 0.0 < means[0] < means[1]


# Text only.


def test_text_is_tokenised_here_and_nothing_is_forced(folder: Path) -> None:
    toy = Toy(folder=folder, kind="other", ids=False)
    with serving(toy) as server:
        offer = look(client(server.url), toy.tokenizer, model="", wanted=10)
        asker = TextAsker(
            client=client(server.url), dialect=offer.dialect, model="toy", tokenizer=toy.tokenizer, begin=(0,)
        )
        server.asked.clear()
        found = asker.generate((0, *prompt(toy)), 6, 0)
        assert server.asked[0][1] is not None
        assert server.asked[0][1]["prompt"] == toy.tokenizer.decode(prompt(toy))
        with pytest.raises(EngineError, match="lists no probable tokens by id"):
            asker.force((1,), (2,), 3)
        with pytest.raises(EngineError, match="lists no probable tokens by id"):
            asker.read((1, 2), 1, 3)
        ended = asker.generate((0, *prompt(toy)), 60, 0)
    assert 0 < len(found.tokens) <= 6
    assert found.listing is None
    assert not found.ended
    assert ended.ended
    assert ended.tokens[-1] == 1
