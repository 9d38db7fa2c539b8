"""Tokenizers of real GGUF models, against ids recorded from llama.cpp.

A model is found through its environment variable or, for SmolLM2, where `refract fetch --model smollm2` puts it.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from refract.work import Message

pytest.importorskip("tokenizers", reason="the tokenizers package is not installed")

from refract.backends._tokenizer import HFTokenizer, load_tokenizer

pytestmark = pytest.mark.engine

FIXTURES = Path(__file__).parent.parent / "backends" / "fixtures"
PREFIX = "llama-tokenize_xllamacpp-2026.10.11549_"
FETCHED = "models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
HARD_TEXTS = (
    "", " ", "trailing ", "trailing\n", "\u200b", "zero\u200bwidth\u200b", "👩‍👩‍👧‍👦 👍🏽", "שלום مرحبا",
    "NUL\x00here", "\x00", "a\r\nb\r\n", "\ufeffBOM", "é e\u0301", "\U0010ffff",
    "tab\t\ttab", "   spaces    ", "\u2028\u0085", "𝔘𝔫",
)  # fmt: skip


def find(variable: str, fetched: str | None) -> Path:
    """The model file, or a skip that says how to provide it."""
    if named := os.environ.get(variable):
        return Path(named)
    cache = Path(os.environ.get("REFRACT_CACHE_DIR") or Path.home() / ".cache" / "refract")
    if fetched is not None and (cache / fetched).is_file():
        return cache / fetched
    pytest.skip(f"set {variable} to the model's GGUF file" + (", or run refract fetch" if fetched else ""))


def recorded(name: str) -> list[tuple[str, list[int]]]:
    content: dict[str, Any] = json.loads((FIXTURES / f"{PREFIX}{name}.json").read_text(encoding="utf-8"))
    return [(text, ids) for text, ids in content["cases"]]


@pytest.fixture(scope="module")
def smollm2() -> HFTokenizer:
    return load_tokenizer(find("REFRACT_TEST_SMOLLM2", FETCHED))


@pytest.fixture(scope="module")
def gemma3() -> HFTokenizer:
    return load_tokenizer(find("REFRACT_TEST_GEMMA3", None))


def test_smollm2_agrees_with_llama_cpp(smollm2: HFTokenizer) -> None:
    for text, ids in recorded("smollm2-135m-instruct-q4_1"):
        assert list(smollm2.encode(text)) == ids, text
        assert smollm2.decode(ids) == text


def test_gemma3_agrees_with_llama_cpp(gemma3: HFTokenizer) -> None:
    for text, ids in recorded("gemma3-270m-q4_k_m"):
        assert list(gemma3.encode(text)) == ids, text
        assert gemma3.decode(ids) == text.replace("▁", " ")  # the vocabulary has no "▁" of its own


def test_smollm2_gives_hard_texts_back(smollm2: HFTokenizer) -> None:
    for text in HARD_TEXTS:
        assert smollm2.decode(smollm2.encode(text)) == text


def test_smollm2_half_a_character(smollm2: HFTokenizer) -> None:
    halves = smollm2.encode("Ƕ")
    assert len(halves) == 2
    assert smollm2.decode(halves[:1]) == "\ufffd"
    assert smollm2.decode(halves) == "Ƕ"


def test_smollm2_facts_and_rendering(smollm2: HFTokenizer) -> None:
    assert smollm2.vocab_size == 49152
    assert smollm2.eos_ids == {2}
    assert smollm2.has_chat_template
    assert smollm2.encode("x", add_special=True) == smollm2.encode("x")  # it uses no BOS
    ids = smollm2.render([Message(role="system", content="Be brief."), Message(role="user", content="Hi <b> {{ 1 }}")])
    assert smollm2.decode(ids) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi <b> {{ 1 }}<|im_end|>\n<|im_start|>assistant\n"
    )
    assert [ids.count(token) for token in (1, 2)] == [3, 2]


def test_gemma3_is_a_base_model_with_bos(gemma3: HFTokenizer) -> None:
    assert gemma3.vocab_size == 262144
    assert gemma3.eos_ids == {1}
    assert not gemma3.has_chat_template
    assert gemma3.render([Message(role="user", content="<bos>Hi")]) == gemma3.encode("Hi", add_special=True)
    assert gemma3.encode("Hi", add_special=True)[0] == 2


def test_a_second_load_of_smollm2_comes_from_the_cache(tmp_path: Path) -> None:
    path = find("REFRACT_TEST_SMOLLM2", FETCHED)
    first = load_tokenizer(path, tmp_path)
    start = time.perf_counter()
    second = load_tokenizer(path, tmp_path)
    print(f"second load: {time.perf_counter() - start:.3f} s")
    assert second.encode("Hello there") == first.encode("Hello there")
    assert second.template == first.template
