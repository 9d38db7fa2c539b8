"""A tokenizer of bytes: 256 tokens, the special ones at byte values that UTF-8 never uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from refract.work import Message, TokenIds

VOCAB_SIZE = 256
EOS, BOS, USER, ASSISTANT, SYSTEM, TURN_END = 255, 254, 253, 252, 251, 250  # bytes from 0xF8 on occur in no UTF-8 text
_ROLES = {"user": USER, "assistant": ASSISTANT, "system": SYSTEM, "tool": USER}
_SPECIAL = {EOS: "<eos>", BOS: "<bos>", USER: "<user>", ASSISTANT: "<assistant>", SYSTEM: "<system>", TURN_END: "<end>"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeTokenizer:
    """One token a byte; fulfils `refract.engine.Tokenizer`."""

    has_chat_template: bool = True

    @property
    def vocab_size(self) -> int:
        """256."""
        return VOCAB_SIZE

    @property
    def eos_ids(self) -> frozenset[int]:
        """The one end-of-sequence token."""
        return frozenset({EOS})

    def encode(self, text: str, *, add_special: bool = False) -> TokenIds:
        """The UTF-8 bytes of `text`, lone surrogates replaced, after BOS if asked."""
        ids = tuple(text.encode("utf-8", "replace"))
        return (BOS, *ids) if add_special else ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`; special tokens by name, invalid UTF-8 as U+FFFD."""
        parts: list[str] = []
        plain = bytearray()
        for token in ids:
            if token in _SPECIAL:
                parts += (plain.decode("utf-8", "replace"), _SPECIAL[token])
                plain.clear()
            else:
                plain.append(token)
        return "".join((*parts, plain.decode("utf-8", "replace")))

    def render(self, messages: Sequence[Message]) -> TokenIds:
        """BOS, the turns between their marks and the assistant's mark; without a template, contents and blank lines."""
        if not self.has_chat_template:
            return self.encode("\n\n".join(message.content for message in messages), add_special=True)
        turns: list[int] = [BOS]
        for message in messages:
            turns += (_ROLES[message.role], *self.encode(message.content), TURN_END)
        return (*turns, ASSISTANT)
