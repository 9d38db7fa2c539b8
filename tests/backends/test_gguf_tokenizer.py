"""Tokenizers rebuilt from GGUF metadata, against ids recorded from llama.cpp on the same small vocabularies."""

from __future__ import annotations

import json
import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from refract.backends._gguf import GGUF, Value
from refract.backends._gguf_tokenizer import SPLITS, TokenizerFacts, tokenizer_facts, tokenizer_json
from refract.errors import ModelError

FIXTURES = Path(__file__).parent / "fixtures"
RECORDED: Mapping[str, Any] = json.loads(
    (FIXTURES / "llama-tokenize_xllamacpp-2026.10.11549_small-vocabularies.json").read_text(encoding="utf-8")
)
PIECES = "▁t he ▁a in ▁the re er on ing ▁th nd ▁and ▁w or en at ▁▁ ▁▁▁▁ aa aaa th ▁h ▁he ll ello ▁hello 12 ué"


def byte_characters() -> list[str]:
    """The 256 characters that stand for bytes in byte-level BPE."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return [chr(byte) for byte in plain] + [chr(256 + n) for n in range(len(others))]


def byte_level(pre: str, **more: Value) -> GGUF:
    """A byte-level vocabulary whose merges tell every way of cutting text apart: digits, punctuation, white space."""
    tokens = byte_characters()
    merges: dict[str, None] = {}

    def merge(left: str, right: str) -> None:
        merges.setdefault(f"{left} {right}")
        if left + right not in known:
            known.add(left + right)
            tokens.append(left + right)

    known = set(tokens)
    digits, letters, blanks, marks = string.digits, "abcdefgstxyzXYZLMSD", "ĠĊĉč", string.punctuation
    for left in digits:
        for right in digits:
            merge(left, right)
    for pair in ("12", "34", "00", "23"):
        for right in (*digits, "12", "34", "00", "56"):
            merge(pair, right)
    for mark in marks:
        for other in (*letters, *digits, *blanks, *marks):
            merge(mark, other)
            if other not in marks:
                merge(other, mark)
    for blank in blanks:
        for other in (*blanks, "a", "X", "1"):
            merge(blank, other)
            merge(other, blank)
    for left in "abcxyzXYZ":
        for right in "abcxyzXYZ":
            merge(left, right)
    merge(".Ċ", "Ċ")
    tokens += ["<|begin|>", "<|im_end|>", "   "]
    kinds: list[Any] = [1] * (len(tokens) - 3) + [3, 1, 4]
    return metadata(
        "gpt2", tokens, kinds, pre=pre, merges=list(merges), bos_token_id=tokens.index("<|begin|>"),
        eos_token_id=tokens.index("<|im_end|>"), **more,
    )  # fmt: skip


def sentence_pieces(**more: Value) -> GGUF:
    """A SentencePiece vocabulary with byte fallback, in which scores, not lengths, decide."""
    special = ["<unk>", "<s>", "</s>"]
    data = [f"<0x{byte:02X}>" for byte in range(256)]
    pieces = PIECES.split()
    letters = [*string.ascii_letters, *string.digits, *".,;:!?'-()", "▁", "é", "ñ", "界"]
    tokens = [*special, *data, *pieces, *letters, "<tool>", "  "]
    scores: list[float] = [0.0] * 259 + [-float(n) for n in range(len(pieces) + len(letters))] + [-1000.0, -1000.0]
    kinds: list[Any] = [2, 3, 3] + [6] * 256 + [1] * (len(pieces) + len(letters)) + [4, 4]
    return metadata("llama", tokens, kinds, pre="default", scores=list(scores), bos_token_id=1, eos_token_id=2, **more)


def metadata(model: str, tokens: list[str], kinds: list[Any], **more: Any) -> GGUF:
    values = {"model": model, "tokens": tokens, "token_type": kinds, **more}
    return GGUF(path=Path("m.gguf"), metadata={f"tokenizer.ggml.{key}": v for key, v in values.items()}, tensors={})


def changed(gguf: GGUF, **changes: Any) -> GGUF:
    """`gguf` with metadata replaced, or removed where the new value is None."""
    values = {**gguf.metadata, **{f"tokenizer.ggml.{key}": value for key, value in changes.items()}}
    return GGUF(path=gguf.path, metadata={k: v for k, v in values.items() if v is not None}, tensors={})


def ids(gguf: GGUF, text: str) -> list[int]:
    backend = tokenizers.Tokenizer.from_str(tokenizer_json(gguf))
    result: list[int] = backend.encode(text, add_special_tokens=False).ids
    return result


def recorded(vocabulary: str) -> list[tuple[str, list[int]]]:
    return list(zip(RECORDED["texts"], RECORDED["ids"][vocabulary], strict=True))


@pytest.mark.parametrize("pre", sorted(set(RECORDED["ids"]) - {"spm", "spm-prefix"}))
def test_every_way_of_cutting_agrees_with_llama_cpp(pre: str) -> None:
    backend = tokenizers.Tokenizer.from_str(tokenizer_json(byte_level(pre)))
    for text, expected in recorded(pre):
        assert backend.encode(text, add_special_tokens=False).ids == expected, text
        assert backend.decode(expected, skip_special_tokens=False) == text


@pytest.mark.parametrize("prefix", [False, True])
def test_sentence_pieces_agree_with_llama_cpp(prefix: bool) -> None:
    backend = tokenizers.Tokenizer.from_str(tokenizer_json(sentence_pieces(add_space_prefix=prefix)))
    for text, expected in recorded("spm-prefix" if prefix else "spm"):
        assert backend.encode(text, add_special_tokens=False).ids == expected, text
        if not prefix and "▁" not in text:  # "▁" stands for a space in such vocabularies
            assert backend.decode(expected, skip_special_tokens=False) == text


def test_the_space_put_in_front_is_taken_away_again() -> None:
    backend = tokenizers.Tokenizer.from_str(tokenizer_json(sentence_pieces(add_space_prefix=True)))
    for text in ("the thing", " the thing", "é 界\n"):
        assert backend.decode(backend.encode(text).ids, skip_special_tokens=False) == text


def test_every_family_is_recorded_at_least_once() -> None:
    covered = {SPLITS[name] for name in RECORDED["ids"] if name in SPLITS}
    assert covered == set(SPLITS.values())


def test_an_absent_kind_of_cutting_is_the_default_one() -> None:
    named = byte_level("default")
    assert ids(changed(named, pre=None), "a1 23! x") == ids(named, "a1 23! x")


def test_whole_words_are_looked_up_before_merges_where_the_family_does_so() -> None:
    def with_word(pre: str) -> GGUF:
        gguf = byte_level(pre)
        tokens, kinds = gguf.metadata["tokenizer.ggml.tokens"], gguf.metadata["tokenizer.ggml.token_type"]
        assert isinstance(tokens, list)
        assert isinstance(kinds, list)
        return changed(gguf, tokens=[*tokens, "qqq"], token_type=[*kinds, 1])

    assert len(ids(with_word("llama-bpe"), "qqq")) == 1
    assert len(ids(with_word("qwen2"), "qqq")) == 3


def test_facts_of_begin_and_end() -> None:
    facts = tokenizer_facts(byte_level("qwen2", chat_template="ignored: not tokenizer.chat_template"))
    assert facts.prefix == ()
    assert facts.bos == "<|begin|>"
    assert facts.eos == "<|im_end|>"
    assert facts.template is None
    assert facts.eos_ids == (ids(byte_level("qwen2"), "<|im_end|>")[0],)
    assert tokenizer_facts(byte_level("llama-bpe")).prefix == tuple(ids(byte_level("qwen2"), "<|begin|>"))
    assert tokenizer_facts(byte_level("llama-bpe", add_bos_token=False)).prefix == ()
    assert tokenizer_facts(byte_level("qwen2", add_bos_token=True)).prefix != ()
    assert tokenizer_facts(byte_level("qwen2", eot_token_id=0)).eos_ids[0] == 0


def test_sentence_pieces_begin_with_bos_unless_told_otherwise() -> None:
    assert tokenizer_facts(sentence_pieces()).prefix == (1,)
    assert tokenizer_facts(changed(sentence_pieces(), bos_token_id=None, eos_token_id=None)) == TokenizerFacts(
        prefix=(1,), eos_ids=(2,), template=None, bos="<s>", eos="</s>"
    )
    assert tokenizer_facts(sentence_pieces(add_bos_token=False)).prefix == ()


def test_ids_outside_the_vocabulary_are_ignored() -> None:
    facts = tokenizer_facts(changed(byte_level("llama-bpe"), bos_token_id=10**6, eos_token_id="x"))
    assert facts == TokenizerFacts(prefix=(), eos_ids=(), template=None, bos="", eos="")


def test_end_of_turn_tokens_are_special_whatever_the_file_says() -> None:
    gguf = byte_level("qwen2")  # marks <|im_end|> as an ordinary token
    assert len(ids(gguf, "<|im_end|>")) == 1


def test_phi3_swallows_white_space_after_its_special_tokens() -> None:
    gguf = byte_level("qwen2")
    named = GGUF(path=gguf.path, metadata={**gguf.metadata, "general.name": "Phi-3 mini"}, tensors={})
    assert ids(named, "<|im_end|>\n a") == ids(gguf, "<|im_end|>a")
    assert ids(gguf, "<|im_end|>\n a") != ids(gguf, "<|im_end|>a")


def test_tokens_that_are_empty_or_no_text_keep_their_place() -> None:
    gguf = byte_level("qwen2")
    tokens, kinds = gguf.metadata["tokenizer.ggml.tokens"], gguf.metadata["tokenizer.ggml.token_type"]
    assert isinstance(tokens, list)
    assert isinstance(kinds, list)
    odd = changed(gguf, tokens=[*tokens, "", "\udcff", "last"], token_type=[*kinds, 1, 1, 4])
    assert ids(odd, "last") == [len(tokens) + 2]


@pytest.mark.parametrize("model", ["bert", "t5", "rwkv", "plamo2", None, 7])
def test_other_kinds_of_tokenizer_are_named(model: object) -> None:
    with pytest.raises(ModelError, match=repr(model)):
        tokenizer_json(changed(byte_level("qwen2"), model=model))


@pytest.mark.parametrize("pre", ["kimi-k2", "superbpe", "invented"])
def test_other_ways_of_cutting_are_named(pre: str) -> None:
    with pytest.raises(ModelError, match=pre):
        tokenizer_json(byte_level(pre))


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"tokens": None}, "holds no tokenizer"),
        ({"tokens": []}, "holds no tokenizer"),
        ({"tokens": [1, 2]}, "holds no tokenizer"),
        ({"tokens": ["a", "a"]}, "twice"),
        ({"merges": None}, "merges"),
        ({"merges": "a b"}, "merges"),
        ({"token_type": [1]}, "token_type"),
        ({"token_type": 1}, "token_type"),
    ],
)
def test_damaged_metadata_is_named(changes: dict[str, Any], part: str) -> None:
    with pytest.raises(ModelError, match=part):
        tokenizer_json(changed(byte_level("qwen2"), **changes))


@pytest.mark.parametrize("scores", [None, [0.0]])
def test_sentence_pieces_need_scores(scores: object) -> None:
    with pytest.raises(ModelError, match="scores"):
        tokenizer_json(changed(sentence_pieces(), scores=scores))


def test_merges_of_unknown_tokens_are_left_out() -> None:
    gguf = byte_level("qwen2")
    merges = gguf.metadata["tokenizer.ggml.merges"]
    assert isinstance(merges, list)
    assert ids(changed(gguf, merges=[*merges, "nowhere no", "single"]), "a12") == ids(gguf, "a12")
