"""Tokenizers of real GGUF models, against ids recorded from llama.cpp."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from refract.backends._tokenizer import HFTokenizer, load_tokenizer
from refract.work import Message

FIXTURES = Path(__file__).parent.parent / "backends" / "fixtures"
PREFIX = "llama-tokenize_xllamacpp-2026.10.11549_"
HARD_TEXTS = (
    "", " ", "trailing ", "trailing\n", "\u200b", "zero\u200bwidth\u200b", "👩‍👩‍👧‍👦 👍🏽", "שלום مرحبا",
    "NUL\x00here", "\x00", "a\r\nb\r\n", "\ufeffBOM", "é e\u0301", "\U0010ffff",
    "tab\t\ttab", "   spaces    ", "\u2028\u0085", "𝔘𝔫",
)  # fmt: skip


def recorded(name: str) -> list[tuple[str, list[int]]]:
    content: dict[str, Any] = json.loads((FIXTURES / f"{PREFIX}{name}.json").read_text(encoding="utf-8"))
    return [(text, ids) for text, ids in content["cases"]]


@pytest.fixture(scope="module")
def smollm2_tokenizer(smollm2: Path) -> HFTokenizer:
    return load_tokenizer(smollm2)


@pytest.fixture(scope="module")
def gemma3_tokenizer(gemma3: Path) -> HFTokenizer:
    return load_tokenizer(gemma3)


def test_smollm2_agrees_with_llama_cpp(smollm2_tokenizer: HFTokenizer) -> None:
    for text, ids in recorded("smollm2-135m-instruct-q4_1"):
        assert list(smollm2_tokenizer.encode(text)) == ids, text
        assert smollm2_tokenizer.decode(ids) == text


def test_gemma3_agrees_with_llama_cpp(gemma3_tokenizer: HFTokenizer) -> None:
    for text, ids in recorded("gemma3-270m-q4_k_m"):
        assert list(gemma3_tokenizer.encode(text)) == ids, text
        assert gemma3_tokenizer.decode(ids) == text.replace("▁", " ")  # the vocabulary has no "▁" of its own


def test_smollm2_gives_hard_texts_back(smollm2_tokenizer: HFTokenizer) -> None:
    for text in HARD_TEXTS:
        assert smollm2_tokenizer.decode(smollm2_tokenizer.encode(text)) == text


def test_smollm2_half_a_character(smollm2_tokenizer: HFTokenizer) -> None:
    halves = smollm2_tokenizer.encode("Ƕ")
    assert len(halves) == 2
    assert smollm2_tokenizer.decode(halves[:1]) == "\ufffd"
    assert smollm2_tokenizer.decode(halves) == "Ƕ"


def test_smollm2_facts_and_rendering(smollm2_tokenizer: HFTokenizer) -> None:
    assert smollm2_tokenizer.vocab_size == 49152
    assert smollm2_tokenizer.eos_ids == {2}
    assert smollm2_tokenizer.has_chat_template
    assert smollm2_tokenizer.encode("x", add_special=True) == smollm2_tokenizer.encode("x")  # it uses no BOS
    ids = smollm2_tokenizer.render(
        [Message(role="system", content="Be brief."), Message(role="user", content="Hi <b> {{ 1 }}")]
    )
    assert smollm2_tokenizer.decode(ids) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi <b> {{ 1 }}<|im_end|>\n<|im_start|>assistant\n"
    )
    assert [ids.count(token) for token in (1, 2)] == [3, 2]


def test_gemma3_is_a_base_model_with_bos(gemma3_tokenizer: HFTokenizer) -> None:
    assert gemma3_tokenizer.vocab_size == 262144
    assert gemma3_tokenizer.eos_ids == {1}
    assert not gemma3_tokenizer.has_chat_template
    assert gemma3_tokenizer.render([Message(role="user", content="<bos>Hi")]) == gemma3_tokenizer.encode(
        "Hi", add_special=True
    )
    assert gemma3_tokenizer.encode("Hi", add_special=True)[0] == 2


def test_a_second_load_of_smollm2_comes_from_the_cache(smollm2: Path, tmp_path: Path) -> None:
    first = load_tokenizer(smollm2, tmp_path)
    second = load_tokenizer(smollm2, tmp_path)
    assert second.encode("Hello there") == first.encode("Hello there")
    assert second.template == first.template
