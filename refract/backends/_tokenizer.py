"""A model's own tokenizer over the `tokenizers` library, from a Hugging Face directory or a GGUF file.

`transformers` is not used: importing it takes seconds, and everything it adds here (special tokens, chat template) is a
few JSON files.
"""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refract.atomic import write_atomically
from refract.backends._chat import ChatTemplate, join_contents, pick_template
from refract.backends._gguf import read_gguf
from refract.backends._gguf_tokenizer import TokenizerFacts, tokenizer_facts, tokenizer_json
from refract.errors import MissingPackageError, ModelError, UsageError
from refract.work import Message, TokenIds

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

CACHE_FORMAT = 1  # raised whenever a tokenizer built from the same GGUF file would come out differently


@dataclass(frozen=True, slots=True, kw_only=True)
class HFTokenizer:
    """Text to ids and back with the model's own tokenizer; fulfils `refract.engine.Tokenizer`.

    Special tokens are recognised wherever their text stands, also in what a user typed, as Hugging Face and llama.cpp
    do: a prompt that contains "<|im_end|>" ends a turn. `prefix` is what the model puts before every sequence (BOS).
    """

    backend: Backend
    prefix: TokenIds
    eos_ids: frozenset[int]
    template: ChatTemplate | None

    @property
    def vocab_size(self) -> int:
        """One more than the largest id; a model's output may be wider (padding), which no text uses."""
        added = self.backend.get_added_tokens_decoder()
        ends: list[int] = [self.backend.get_vocab_size(with_added_tokens=True), *(number + 1 for number in added)]
        return max(ends)

    @property
    def has_chat_template(self) -> bool:
        """Whether `render` formats turns; without a template (base model) it joins contents by blank lines."""
        return self.template is not None

    def encode(self, text: str, *, add_special: bool = False) -> TokenIds:
        """Ids of `text`, nothing added; with `add_special` the model's own beginning of sequence comes first.

        Raises: UsageError when `text` holds a lone surrogate, which is half a character.
        """
        _refuse_surrogates(text)
        ids = tuple(self.backend.encode(text, add_special_tokens=False).ids)
        return self.prefix + ids if add_special else ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, special tokens included, incomplete UTF-8 replaced by U+FFFD. Ids without text are skipped."""
        return str(self.backend.decode(list(ids), skip_special_tokens=False))

    def render(self, messages: Sequence[Message]) -> TokenIds:
        """Ids of the conversation, ready for the assistant's turn.

        Exactly one beginning of sequence comes first where the model uses one, whether the template writes it, the
        tokenizer adds it, or both. Without a template the contents are joined by blank lines.

        Raises: UsageError when the template refuses the messages; ModelError when it fails.
        """
        text = join_contents(messages) if self.template is None else self.template.render(messages)
        ids = self.encode(text)
        while self.prefix and ids[: len(self.prefix)] == self.prefix:
            ids = ids[len(self.prefix) :]
        return self.prefix + ids


def load_tokenizer(path: Path, cache_dir: Path | None = None) -> HFTokenizer:
    """The tokenizer of the model at `path`, a Hugging Face directory or a GGUF file; no weights are read.

    What is built from a GGUF file is kept under `cache_dir`/tokenizers, so that a second call is fast.

    Raises: ModelError when there is no usable tokenizer; MissingPackageError without the `tokenizers` package.
    """
    try:
        folder = stat.S_ISDIR(path.stat().st_mode)
    except OSError as error:
        raise ModelError(f"there is no model at {path}: {error.strerror}", hint="check the path") from None
    if folder:
        return _from_directory(path)
    cached = None if cache_dir is None else _cache_file(path, cache_dir)
    known = None if cached is None else _read_cache(cached)
    if known is not None:
        return known
    gguf = read_gguf(path)
    facts, text = tokenizer_facts(gguf), tokenizer_json(gguf)
    tokenizer = _assemble(_parse(text, path.name), facts)
    if cached is not None:
        _write_cache(cached, facts, text)
    return tokenizer


def _refuse_surrogates(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"the text holds the lone surrogate U+{ord(text[error.start]):04X} at character {error.start}, half a"
            " character that no tokenizer can read",
            hint="write the whole character in the file, or remove it",
        ) from None


def _assemble(backend: Backend, facts: TokenizerFacts) -> HFTokenizer:
    backend.no_truncation()
    backend.no_padding()
    template = None if facts.template is None else ChatTemplate(facts.template, facts.bos, facts.eos)
    ends = (backend.token_to_id(token) for token in (template.turn_ends() if template else ()))
    eos_ids = frozenset(facts.eos_ids) | {number for number in ends if number is not None}
    return HFTokenizer(backend=backend, prefix=facts.prefix, eos_ids=eos_ids, template=template)


def _parse(text: str, name: str) -> Backend:
    try:
        from tokenizers import Tokenizer as Backend
    except ImportError:
        raise MissingPackageError(
            "the tokenizers package is not installed", hint="pip install 'refract-kv[mlx]'"
        ) from None
    try:
        return Backend.from_str(text)
    except Exception as error:  # noqa: BLE001 -- the library raises bare Exception for whatever it cannot read
        raise ModelError(
            f"the tokenizer of {name} cannot be read: {error}",
            hint="download the model again, or update the tokenizers package",
        ) from None


# --- Hugging Face directories


def _from_directory(path: Path) -> HFTokenizer:
    file = path / "tokenizer.json"
    if not file.is_file():
        raise ModelError(
            f"{path.name} holds no tokenizer.json",
            hint="write one with transformers: AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)",
        )
    backend = _parse(_read(file), path.name)
    return _assemble(backend, _directory_facts(path, backend))


def _directory_facts(path: Path, backend: Backend) -> TokenizerFacts:
    config, names = _object(path / "tokenizer_config.json"), _object(path / "special_tokens_map.json")
    bos, eos = (_token_text(config.get(key)) or _token_text(names.get(key)) for key in ("bos_token", "eos_token"))
    model = _object(path / "config.json")
    nested = model.get("text_config")
    sources = [_object(path / "generation_config.json"), model, nested if isinstance(nested, dict) else {}]
    eos_ids = {number for source in sources for number in _numbers(source.get("eos_token_id"))}
    eos_id = None if eos is None else backend.token_to_id(eos)
    return TokenizerFacts(
        prefix=_prefix(backend, bos, config.get("add_bos_token")),
        eos_ids=tuple(sorted(eos_ids | ({eos_id} if eos_id is not None else set()))),
        template=_template(path, config),
        bos=bos or "",
        eos=eos or "",
    )


def _prefix(backend: Backend, bos: str | None, add_bos: object) -> TokenIds:
    """What the model puts before a sequence: the post-processor's prefix, unless `add_bos_token` says otherwise."""
    bos_id = None if bos is None else backend.token_to_id(bos)
    if add_bos is True and bos_id is not None:
        return (bos_id,)
    if add_bos is False:
        return ()
    plain, framed = (backend.encode("a", add_special_tokens=special).ids for special in (False, True))
    extra = len(framed) - len(plain)
    starts = [n for n in range(extra + 1) if framed[n : n + len(plain)] == plain]
    return tuple(framed[: starts[0]]) if starts else ()


def _template(path: Path, config: Mapping[str, Any]) -> str | None:
    """The chat template, from the first place that has one, in the order transformers 5.24 looks."""
    file = path / "chat_template.jinja"
    if file.is_file():
        return _read(file)
    return pick_template(_object(path / "chat_template.json").get("chat_template")) or pick_template(
        config.get("chat_template")
    )


def _token_text(value: object) -> str | None:
    """The text of a special token, written as text or as an object with its content."""
    text = value.get("content") if isinstance(value, Mapping) else value
    return text if isinstance(text, str) and text else None


def _numbers(value: object) -> Iterable[int]:
    values = value if isinstance(value, list) else [value]
    return (number for number in values if isinstance(number, int) and not isinstance(number, bool))


def _object(file: Path) -> Mapping[str, Any]:
    """The JSON object in `file`, empty when there is no such file."""
    if not file.is_file():
        return {}
    try:
        value = json.loads(_read(file))
    except (ValueError, RecursionError) as error:
        raise _unreadable(file, str(error)) from None
    if not isinstance(value, dict):
        raise _unreadable(file, f"an object is expected, not {type(value).__name__}")
    return value


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise _unreadable(file, str(error.strerror)) from None
    except UnicodeDecodeError as error:
        raise _unreadable(file, f"byte {error.start} is not UTF-8") from None


def _unreadable(file: Path, what: str) -> ModelError:
    return ModelError(f"{file.parent.name}/{file.name} cannot be read: {what}", hint="download the model again")


# --- the cache of tokenizers built from GGUF files: a line of JSON about the tokenizer, then its tokenizer.json


def _cache_file(path: Path, cache_dir: Path) -> Path:
    """Where the tokenizer of this very file is kept: another size, time or file gives another name."""
    state = path.stat()
    key = f"{CACHE_FORMAT} {state.st_dev} {state.st_ino} {state.st_size} {state.st_mtime_ns}"
    return cache_dir / "tokenizers" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


def _read_cache(file: Path) -> HFTokenizer | None:
    """The tokenizer kept in `file`, None when there is none or it is damaged (it is then built again)."""
    try:
        head, _, text = file.read_text(encoding="utf-8").partition("\n")
        known = json.loads(head)
        if known.pop("format") != CACHE_FORMAT or known.pop("sha256") != _digest(text):
            return None
        facts = TokenizerFacts(**known | {"prefix": tuple(known["prefix"]), "eos_ids": tuple(known["eos_ids"])})
        return _assemble(_parse(text, file.name), facts)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, ModelError):
        return None


def _write_cache(file: Path, facts: TokenizerFacts, text: str) -> None:
    """Keeps the tokenizer, complete or not at all. A cache that cannot be written only costs time."""
    head = json.dumps({"format": CACHE_FORMAT, "sha256": _digest(text), **asdict(facts)})
    with suppress(OSError):
        write_atomically(file, f"{head}\n{text}".encode())


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def plain_token(tokenizer: HFTokenizer) -> int:
    """A token that is one plain letter."""
    return next(ids[0] for letter in "aexAEX.0" if len(ids := tokenizer.encode(letter)) == 1)
