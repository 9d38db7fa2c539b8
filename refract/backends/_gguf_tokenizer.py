"""Rebuilds a GGUF model's tokenizer from its metadata, as a `tokenizer.json` of the `tokenizers` library.

What llama.cpp b11434 does (src/llama-vocab.cpp, src/unicode.cpp) is followed, so that ids agree with it, also where the
model's original tokenizer did more: Qwen's and Command R's NFC normalisation is not applied. The regular expressions
are those of the models' own tokenizer.json files, which llama.cpp quotes beside its adaptations of them. One adaptation
changes ids: where a word of tekken or gpt-4o begins with a combining mark, llama.cpp cuts after the mark.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from refract.backends._chat import TURN_ENDS
from refract.backends._gguf import GGUF, Scalar, Value
from refract.errors import ModelError

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 1, 2, 3, 4, 6  # llama_token_type, include/llama.h
_NEVER_MERGED = (_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE)

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_CASED = (rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+", rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*")
_CASED_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_ASCII_PUNCTUATION = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"

# One entry a family: the regular expressions that cut text into words, one after the other, and the names that
# `tokenizer.ggml.pre` gives it. Order and grouping follow llama-vocab.cpp.
_FAMILIES: tuple[tuple[tuple[str, ...], str], ...] = (
    ((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"), "default"),
    (
        (_GPT2,),
        "gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert mpt olmo jais exaone4"
        " trillion granite-docling",
    ),
    ((r"\p{N}", _GPT2), "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2"),
    (
        (rf"{_SHORT}|{_WORD}|\p{{N}}{{1,3}}|{_TAIL}",),
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 dbrx smaug-bpe chatglm-bpe glm4 glm5",
    ),
    (
        (rf"{_SHORT}|{_WORD}|\p{{N}}|{_TAIL}",),
        "qwen2 deepseek-r1-qwen kormo f2llmv2 stablelm2 hunyuan solar-open megrez grok-2",
    ),
    (
        (rf"{_SHORT}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+",),
        "qwen35",
    ),
    ((rf"{_CASED[0]}|{_CASED[1]}|\p{{N}}|{_CASED_TAIL}",), "tekken"),
    (
        (rf"{_CASED[0]}{_SHORT}?|{_CASED[1]}{_SHORT}?|\p{{N}}{{1,3}}|{_CASED_TAIL}",),
        "gpt-4o llama4 kanana2 talkie minimax-m2",
    ),
    (("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}"), "deepseek-coder"),
    (
        (r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
         rf"{_ASCII_PUNCTUATION}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+"),
        "deepseek-v3 hunyuan-dense joyai-llm hy_v4",
    ),
    ((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]"), "falcon"),
    (
        (rf"'(?i:[sdmt]|ll|ve|re)|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",),
        "bailingmoe bailingmoe2 llada-moe",
    ),
    (
        (rf"{_SHORT}|{_WORD}|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+",),
        "seed-coder",
    ),
)  # fmt: skip
SPLITS: Mapping[str, tuple[str, ...]] = {name: splits for splits, names in _FAMILIES for name in names.split()}

# Families whose words are looked up whole before any merge, and those that put BOS in front unless told otherwise.
_ADD_BOS = frozenset(
    {"llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "tekken"}
)
_WHOLE_WORDS = _ADD_BOS | {"glm4", "glm5"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFacts:
    """What a tokenizer needs to know besides text to ids: `prefix` comes before every prompt, `eos_ids` end one."""

    prefix: tuple[int, ...]
    eos_ids: tuple[int, ...]
    template: str | None
    bos: str
    eos: str


def tokenizer_facts(gguf: GGUF) -> TokenizerFacts:
    """Begin and end of sequence and the chat template of the model.

    Raises: ModelError when the metadata holds no tokenizer.
    """
    values, tokens = gguf.metadata, _tokens(gguf)
    spm = values.get("tokenizer.ggml.model") == "llama"
    bos = _token_id(values, "bos", tokens, 1 if spm else None)
    ends = [_token_id(values, "eos", tokens, 2 if spm else None)]
    ends += [_token_id(values, name, tokens, None) for name in ("eot", "eom")]
    add_bos = values.get("tokenizer.ggml.add_bos_token", spm or values.get("tokenizer.ggml.pre") in _ADD_BOS)
    template = values.get("tokenizer.chat_template")
    return TokenizerFacts(
        prefix=(bos,) if add_bos and bos is not None else (),
        eos_ids=tuple(sorted({i for i in ends if i is not None})),
        template=template if isinstance(template, str) and template else None,
        bos="" if bos is None else tokens[bos],
        eos="" if ends[0] is None else tokens[ends[0]],
    )


def tokenizer_json(gguf: GGUF) -> str:
    """The model's tokenizer as the text of a `tokenizer.json`.

    Raises: ModelError when the metadata holds no tokenizer or one of a kind that is not supported.
    """
    kind = gguf.metadata.get("tokenizer.ggml.model")
    if kind not in ("gpt2", "llama"):
        raise ModelError(
            f"{gguf.path.name} has a tokenizer of kind {kind!r}; supported are gpt2 (byte-level BPE) and llama (SPM)",
            hint="use the model's Hugging Face directory instead of the GGUF file",
        )
    tokens = _tokens(gguf)
    vocabulary = {token: number for number, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise _bad(gguf, "tokens", "some tokens occur twice")
    kinds = _column(gguf, "token_type", len(tokens)) or [_NORMAL] * len(tokens)
    added = _added_tokens(gguf, tokens, kinds)
    parts = _byte_level(gguf, vocabulary) if kind == "gpt2" else _sentence_pieces(gguf, vocabulary, tokens, kinds)
    frame = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "post_processor": None}
    return json.dumps(frame | parts, separators=(",", ":"))


def _byte_level(gguf: GGUF, vocabulary: Mapping[str, int]) -> dict[str, object]:
    name = str(gguf.metadata.get("tokenizer.ggml.pre", "default"))
    if name not in SPLITS:
        raise ModelError(
            f"{gguf.path.name} cuts text the way {name!r} does (tokenizer.ggml.pre), which is not supported",
            hint="use the model's Hugging Face directory instead of the GGUF file",
        )
    splits: list[dict[str, object]] = [
        {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
        for regex in SPLITS[name]
    ]
    to_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    merges = list(_listed_merges(gguf, vocabulary))
    return {
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, to_bytes]},
        "decoder": to_bytes,
        "model": _bpe(vocabulary, merges, unknown=None, byte_fallback=False, whole_words=name in _WHOLE_WORDS),
    }


def _sentence_pieces(
    gguf: GGUF, vocabulary: Mapping[str, int], tokens: Sequence[str], kinds: Sequence[Scalar]
) -> dict[str, object]:
    prefix = bool(gguf.metadata.get("tokenizer.ggml.add_space_prefix", True))
    spaces: dict[str, object] = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    marks: dict[str, object] = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    first: list[dict[str, object]] = [{"type": "Prepend", "prepend": "▁"}] if prefix else []
    last: list[dict[str, object]] = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []
    unknown = _token_id(gguf.metadata, "unknown", tokens, 0)
    scores = _column(gguf, "scores", len(tokens))
    if scores is None:
        raise _bad(gguf, "scores", "the list is missing")
    plain = {token: number for token, number in vocabulary.items() if kinds[number] not in _NEVER_MERGED}
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*first, spaces]},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": [marks, {"type": "ByteFallback"}, {"type": "Fuse"}, *last]},
        "model": _bpe(
            vocabulary,
            _scored_merges(plain, scores),
            unknown=None if unknown is None else tokens[unknown],
            byte_fallback=True,
            whole_words=False,
        ),
    }


def _bpe(
    vocabulary: Mapping[str, int],
    merges: list[tuple[str, str]],
    *,
    unknown: str | None,
    byte_fallback: bool,
    whole_words: bool,
) -> dict[str, object]:
    return {
        "type": "BPE", "dropout": None, "unk_token": unknown, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": byte_fallback, "ignore_merges": whole_words,
        "vocab": vocabulary, "merges": merges,
    }  # fmt: skip


def _listed_merges(gguf: GGUF, vocabulary: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    merges = gguf.metadata.get("tokenizer.ggml.merges")
    if not isinstance(merges, list):
        raise _bad(gguf, "merges", "the list is missing")
    for merge in merges:
        cut = str(merge).find(" ", 1)
        left, right = str(merge)[:cut], str(merge)[cut + 1 :]
        if left in vocabulary and right in vocabulary and left + right in vocabulary:
            yield left, right


def _scored_merges(plain: Mapping[str, int], scores: Sequence[Scalar]) -> list[tuple[str, str]]:
    """The merges that make byte-pair encoding choose as SentencePiece does: the best-scored token first.

    Source: `generate_merges` of transformers 5.24, `convert_slow_tokenizer.py`; among equal scores the longer left
    half comes first.
    """
    found: list[tuple[float, int, int, str, str]] = []
    for token, number in plain.items():
        score = -float(scores[number])
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in plain and right in plain:
                found.append((score, -cut, number, left, right))
    found.sort()
    return [(left, right) for *_, left, right in found]


def _added_tokens(gguf: GGUF, tokens: Sequence[str], kinds: Sequence[Scalar]) -> list[dict[str, object]]:
    """The tokens found in text before anything else: control, unknown and user-defined ones.

    Well-known end-of-turn tokens are among them whatever type the file gives them, as in llama.cpp. Phi-3 swallows the
    white space after most of them; GGUF does not record that, llama.cpp goes by the model's name.
    """
    strips = any(name in str(gguf.metadata.get("general.name", "")).lower() for name in ("phi-3", "phi3"))
    keeps_space = ("<unk>", "<s>", "<|endoftext|>")
    return [
        {
            "id": number, "content": token, "single_word": False, "lstrip": False,
            "rstrip": strips and token not in keeps_space, "normalized": False, "special": kind != _USER_DEFINED,
        }
        for number, token, kind in zip(count(), tokens, kinds, strict=False)
        if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED) or token in TURN_ENDS
    ]  # fmt: skip


def _tokens(gguf: GGUF) -> list[str]:
    """The vocabulary in order. Texts that JSON cannot hold (empty, not UTF-8) get a name no text produces."""
    tokens = gguf.metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens or not isinstance(tokens[0], str):
        raise ModelError(
            f"{gguf.path.name} holds no tokenizer (tokenizer.ggml.tokens is missing)",
            hint="use a GGUF file that has one, or the model's Hugging Face directory",
        )
    return [_named(str(token), number) for number, token in enumerate(tokens)]


def _named(token: str, number: int) -> str:
    try:
        return token if token and token.encode() else f"[EMPTY_{number}]"
    except UnicodeEncodeError:
        return f"[INVALID_{number}]"


def _token_id(values: Mapping[str, Value], name: str, tokens: Sequence[str], default: int | None) -> int | None:
    number = values.get(f"tokenizer.ggml.{name}_token_id", default)
    return number if isinstance(number, int) and 0 <= number < len(tokens) else None


def _column(gguf: GGUF, name: str, length: int) -> list[Scalar] | None:
    column = gguf.metadata.get(f"tokenizer.ggml.{name}")
    if column is None:
        return None
    if not isinstance(column, list) or len(column) < length:
        raise _bad(gguf, name, f"{length} entries are needed")
    return column


def _bad(gguf: GGUF, name: str, what: str) -> ModelError:
    return ModelError(
        f"the tokenizer in {gguf.path.name} is damaged: tokenizer.ggml.{name}: {what}",
        hint="download the model file again",
    )
