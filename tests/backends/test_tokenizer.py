"""The tokenizer of a Hugging Face directory or a GGUF file: what comes first, what ends, what text survives."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFWriter
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from refract.backends import _tokenizer
from refract.backends._tokenizer import HFTokenizer, load_tokenizer
from refract.errors import MissingPackageError, ModelError, UsageError
from refract.work import Message

SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
HARD_TEXTS = (
    "", " ", "trailing ", "trailing\n", "\u200b", "zero\u200bwidth\u200b", "👩‍👩‍👧‍👦 👍🏽", "שלום مرحبا",
    "NUL\x00here", "\x00", "a\r\nb\r\n", "\ufeffBOM", "é e\u0301", "\U0010ffff",
    "tab\t\ttab", "   spaces    ", "\u2028\u0085", "𝔘𝔫",
)  # fmt: skip
USER = [Message(role="user", content="Hello there")]


def backend(**post: Any) -> Any:
    """A byte-level tokenizer trained on a few lines, so small that most characters are several tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(["hello there, the user said hello", "system user assistant"], trainer)
    if post:
        made.post_processor = processors.TemplateProcessing(
            single=post["single"], special_tokens=[(t, made.token_to_id(t)) for t in SPECIAL[:2]]
        )
    return made


PLAIN = backend()
BOS, EOS, _, IM_END = (PLAIN.token_to_id(token) for token in SPECIAL)
WITH_BOS = backend(single="<s> $A")
WITH_BOTH = backend(single="<s> $A </s>")


def directory(folder: Path, made: Any = PLAIN, **files: Any) -> Path:
    """A model directory; keyword `generation_config={…}` becomes generation_config.json."""
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(made.to_str(), encoding="utf-8")
    for name, value in files.items():
        (folder / f"{name}.json").write_text(json.dumps(value), encoding="utf-8")
    return folder


def load(folder: Path, made: Any = PLAIN, **files: Any) -> HFTokenizer:
    return load_tokenizer(directory(folder, made, **files))


def named(**more: Any) -> dict[str, Any]:
    return {"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": False}, **more}


def test_encode_adds_nothing_and_decode_gives_the_text_back(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, WITH_BOTH, tokenizer_config=named())
    for text in HARD_TEXTS:
        ids = tokenizer.encode(text)
        assert BOS not in ids
        assert EOS not in ids
        assert tokenizer.decode(ids) == text


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=60))
def test_any_text_survives(text: str) -> None:
    tokenizer = HFTokenizer(backend=PLAIN, prefix=(), eos_ids=frozenset(), template=None)
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_half_a_character_is_replaced_and_both_halves_make_it(tmp_path: Path) -> None:
    tokenizer = load(tmp_path)
    first, second = tokenizer.encode("é")
    assert tokenizer.decode([first]) == "\ufffd"
    assert tokenizer.decode([first, second]) == "é"
    assert tokenizer.decode([first, *tokenizer.encode("a")]) == "\ufffda"


def test_lone_surrogates_are_named(tmp_path: Path) -> None:
    tokenizer = load(tmp_path)
    with pytest.raises(UsageError, match=r"U\+D83D at character 3"):
        tokenizer.encode("abc\ud83d")
    with pytest.raises(UsageError, match=r"U\+DE00"):
        tokenizer.render([Message(role="user", content="\ude00")])


def test_special_tokens_are_recognised_in_text_and_kept_in_text(tmp_path: Path) -> None:
    tokenizer = load(tmp_path)
    ids = tokenizer.encode("a<|im_end|>b")
    assert IM_END in ids
    assert tokenizer.decode(ids) == "a<|im_end|>b"


@pytest.mark.parametrize(
    ("made", "config", "prefix"),
    [
        (PLAIN, {}, ()),
        (PLAIN, named(), ()),
        (PLAIN, named(add_bos_token=True), (BOS,)),
        (PLAIN, {"add_bos_token": True}, ()),
        (WITH_BOS, {}, (BOS,)),
        (WITH_BOS, named(), (BOS,)),
        (WITH_BOS, named(add_bos_token=False), ()),
        (WITH_BOTH, named(), (BOS,)),
    ],
)
def test_what_comes_first(tmp_path: Path, made: Any, config: dict[str, Any], prefix: tuple[int, ...]) -> None:
    tokenizer = load(tmp_path, made, tokenizer_config=config)
    assert tokenizer.encode("hi", add_special=True) == prefix + tokenizer.encode("hi")
    assert tokenizer.encode("", add_special=True) == prefix


@pytest.mark.parametrize("made", [PLAIN, WITH_BOS])
@pytest.mark.parametrize("written", ["", "{{ bos_token }}", "<s>"])
def test_exactly_one_bos_arrives(tmp_path: Path, made: Any, written: str) -> None:
    tokenizer = load(tmp_path, made, tokenizer_config=named(chat_template=written + CHATML))
    ids = tokenizer.render(USER)
    uses_bos = made is WITH_BOS or bool(written)
    assert ids.count(BOS) == int(uses_bos)
    assert (ids[0] == BOS) == uses_bos


def test_a_base_models_contents_are_joined_after_one_bos(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, WITH_BOS)
    assert not tokenizer.has_chat_template
    messages = [Message(role="system", content="a"), Message(role="user", content="b")]
    assert tokenizer.render(messages) == tokenizer.encode("a\n\nb", add_special=True)
    assert tokenizer.render([Message(role="user", content="<s>b")]) == tokenizer.encode("b", add_special=True)


def test_the_template_comes_from_the_first_place_that_has_one(tmp_path: Path) -> None:
    def text(**files: Any) -> str:
        tokenizer = load(tmp_path, **files)
        return tokenizer.decode(tokenizer.render(USER)) if tokenizer.has_chat_template else ""

    assert text() == ""
    assert text(tokenizer_config={"chat_template": "config"}) == "config"
    several = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "list"}]
    assert text(tokenizer_config={"chat_template": several}) == "list"
    assert text(chat_template={"chat_template": "json"}) == "json"
    (tmp_path / "chat_template.jinja").write_text("jinja")
    assert text() == "jinja"


@pytest.mark.parametrize(
    ("files", "eos"),
    [
        ({}, set()),
        ({"tokenizer_config": named()}, {EOS}),
        ({"special_tokens_map": {"eos_token": "</s>"}}, {EOS}),
        ({"config": {"eos_token_id": 7}}, {7}),
        ({"config": {"text_config": {"eos_token_id": [8, 9]}}}, {8, 9}),
        ({"generation_config": {"eos_token_id": [7, IM_END]}, "config": {"eos_token_id": 8}}, {7, 8, IM_END}),
        ({"config": {"eos_token_id": None}, "generation_config": {"eos_token_id": True}}, set()),
        ({"tokenizer_config": named(chat_template=CHATML)}, {EOS, IM_END}),
        ({"tokenizer_config": {"eos_token": "<absent>", "chat_template": "x<end_of_turn>"}}, set()),
    ],
)
def test_what_ends(tmp_path: Path, files: dict[str, Any], eos: set[int]) -> None:
    assert load(tmp_path, **files).eos_ids == eos


def test_padding_and_truncation_are_off(tmp_path: Path) -> None:
    made = backend()
    made.enable_truncation(2)
    made.enable_padding(length=50)
    assert load(tmp_path, made).encode("hello there") == load(tmp_path).encode("hello there")


def test_vocabulary_size_covers_every_id(tmp_path: Path) -> None:
    tokenizer = load(tmp_path)
    assert tokenizer.vocab_size == PLAIN.get_vocab_size()
    assert max(tokenizer.encode("hello <|im_end|> é")) < tokenizer.vocab_size
    tokenizer.backend.add_tokens(["<extra>"])
    assert tokenizer.encode("<extra>") == (tokenizer.vocab_size - 1,)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", b"{"), ("tokenizer.json", b"{}"), ("tokenizer.json", b"\xff\xfe"), ("tokenizer.json", b""),
        ("tokenizer_config.json", b"{"), ("tokenizer_config.json", b"[]"), ("config.json", b"\xff"),
        ("generation_config.json", b"nonsense"), ("chat_template.jinja", b"{% for %}"),
        ("chat_template.json", b'{"chat_template": 5}'), ("config.json", b"[" * 100_000),
    ],
)  # fmt: skip
def test_damaged_directories_are_refused_in_one_line(tmp_path: Path, name: str, content: bytes) -> None:
    directory(tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelError) as caught:
        load_tokenizer(tmp_path)
    assert "\n" not in caught.value.message


def test_a_directory_without_tokenizer_json_says_how_to_get_one(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"spm")
    with pytest.raises(ModelError, match=r"no tokenizer\.json") as caught:
        load_tokenizer(tmp_path)
    assert "save_pretrained" in str(caught.value.hint)


def test_no_model_and_no_package_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match="no model at"):
        load_tokenizer(tmp_path / "absent")
    directory(tmp_path)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MissingPackageError) as caught:
        load_tokenizer(tmp_path)
    assert "pip install" in str(caught.value.hint)


def gguf_file(path: Path, *, eos: int = EOS) -> Path:
    """A GGUF file without tensors that holds the small tokenizer."""
    state = json.loads(PLAIN.to_str())
    vocabulary = sorted(state["model"]["vocab"], key=state["model"]["vocab"].__getitem__)
    writer = GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(vocabulary)
    writer.add_token_types([3 if token in SPECIAL else 1 for token in vocabulary])
    writer.add_token_merges([" ".join(pair) for pair in state["model"]["merges"]])
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(eos)
    writer.add_add_bos_token(True)
    writer.add_chat_template(CHATML)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def same(left: HFTokenizer, right: HFTokenizer) -> bool:
    """Whether both do the same with text; the libraries' objects themselves cannot be compared."""
    facts = [(t.prefix, t.eos_ids, t.template, t.vocab_size, t.render(USER)) for t in (left, right)]
    return facts[0] == facts[1] and all(left.encode(text) == right.encode(text) for text in HARD_TEXTS)


def test_a_gguf_file_and_its_cache_give_the_directorys_tokenizer(tmp_path: Path) -> None:
    file = gguf_file(tmp_path / "m.gguf")
    expected = load(tmp_path / "hf", WITH_BOS, tokenizer_config=named(chat_template=CHATML))
    assert same(load_tokenizer(file), expected)
    first, second = (load_tokenizer(file, tmp_path / "cache") for _ in range(2))
    assert same(first, expected)
    assert same(second, expected)
    assert len(list((tmp_path / "cache" / "tokenizers").iterdir())) == 1  # and no temporary file


def test_the_second_call_builds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = gguf_file(tmp_path / "m.gguf")
    load_tokenizer(file, tmp_path)
    monkeypatch.setattr(_tokenizer, "read_gguf", None)
    load_tokenizer(file, tmp_path)


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "binary", "version", "facts"])
def test_a_damaged_cache_is_built_again(tmp_path: Path, damage: str) -> None:
    file = gguf_file(tmp_path / "m.gguf")
    good = load_tokenizer(file, tmp_path)
    (cached,) = (tmp_path / "tokenizers").iterdir()
    data = cached.read_bytes()
    half = len(data) // 2
    cached.write_bytes({
        "cut": data[:half],
        "flip": data[:half] + bytes([data[half] ^ 1]) + data[half + 1 :],
        "empty": b"",
        "binary": b"\xff" * 100,
        "version": data.replace(b'"format": 1', b'"format": 0', 1),
        "facts": data.replace(b'"prefix"', b'"suffix"', 1),
    }[damage])  # fmt: skip
    assert same(load_tokenizer(file, tmp_path), good)
    assert cached.read_bytes() == data


def test_another_file_of_the_same_name_is_not_mistaken(tmp_path: Path) -> None:
    file = gguf_file(tmp_path / "m.gguf")
    assert EOS in load_tokenizer(file, tmp_path).eos_ids
    file.unlink()
    assert BOS in load_tokenizer(gguf_file(file, eos=BOS), tmp_path).eos_ids


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(tmp_path: Path) -> None:
    file = gguf_file(tmp_path / "m.gguf")
    blocked = tmp_path / "blocked"
    blocked.write_text("a file, not a folder")
    assert load_tokenizer(file, blocked).has_chat_template


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "weights.safetensors"
    file.write_bytes(b"{}" * 50)
    with pytest.raises(ModelError, match="GGUF"):
        load_tokenizer(file, tmp_path)
