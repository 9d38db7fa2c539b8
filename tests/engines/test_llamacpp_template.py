"""Prompts rendered here are those of llama-server's own chat template, token for token, with one BOS at most."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from refract.backends.llamacpp.engine import LlamaCppEngine
from refract.backends.llamacpp.find import clean_environment
from refract.backends.llamacpp.server import Server, serving
from refract.data.prompts import load_prompts
from refract.run.cache import cache_folder
from refract.work import Message

pytestmark = pytest.mark.usefixtures("llamacpp")
FLAGS = ("-c", "4096", "-np", "1", "-fit", "off", "--jinja", "--no-warmup")
CONVERSATIONS: Sequence[Sequence[tuple[str, str]]] = (
    (("user", "Why is the sky blue?"),),
    (("system", "Answer in one word."), ("user", "Capital of Norway?")),
    (("user", "Hi "), ("assistant", "Hello! \n"), ("user", "zero\u200bwidth, 👩‍🔬, שלום, a\tb")),
)


@pytest.fixture(scope="module")
def engine() -> LlamaCppEngine:
    return LlamaCppEngine(cache_dir=cache_folder())


@pytest.fixture(scope="module")
def server(engine: LlamaCppEngine, smollm2: Path) -> Iterator[Server]:
    with serving(engine.binaries, smollm2, FLAGS, clean_environment({}), timeout_s=60.0) as found:
        yield found


def of_the_server(server: Server, messages: Sequence[Message]) -> tuple[int, ...]:
    """The conversation through /apply-template and /tokenize."""
    plain = [{"role": message.role, "content": message.content} for message in messages]
    text = server.client.post("/apply-template", {"messages": plain})["prompt"]
    tokens = server.client.post("/tokenize", {"content": text, "add_special": True, "parse_special": True})["tokens"]
    return tuple(tokens)


@pytest.mark.parametrize("turns", CONVERSATIONS, ids=["user", "system", "turns"])
def test_a_conversation_is_rendered_as_the_server_renders_it(
    server: Server, engine: LlamaCppEngine, smollm2: Path, turns: Sequence[tuple[str, str]]
) -> None:
    messages = [Message(role=role, content=content) for role, content in turns]
    assert engine.tokenizer(str(smollm2)).render(messages) == of_the_server(server, messages)


def test_so_are_the_bundled_prompts(server: Server, engine: LlamaCppEngine, smollm2: Path) -> None:
    tokenizer = engine.tokenizer(str(smollm2))
    prompts = load_prompts(None).prompts
    wrong = [p.id for p in prompts if tokenizer.render(p.messages) != of_the_server(server, p.messages)]
    assert not wrong
    assert len(prompts) >= 240


def test_a_base_model_is_given_one_bos(engine: LlamaCppEngine, gemma3: Path) -> None:
    tokenizer = engine.tokenizer(str(gemma3))
    (bos,) = set(tokenizer.encode("x", add_special=True)) - set(tokenizer.encode("x"))
    ids = tokenizer.render([Message(role="user", content="The capital of Norway is")])
    assert (ids[0], ids.count(bos)) == (bos, 1)
    with serving(engine.binaries, gemma3, FLAGS, clean_environment({}), timeout_s=60.0) as server:
        body = {"content": tokenizer.decode(ids[1:]), "add_special": True, "parse_special": True}
        assert tuple(server.client.post("/tokenize", body)["tokens"]) == ids
