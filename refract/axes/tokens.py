"""Token ids as people read them, and the begin-of-sequence token of a tokenizer."""

from __future__ import annotations

from collections.abc import Sequence

from refract.engine import Tokenizer
from refract.work import Generation, TokenIds

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def content(generation: Generation) -> TokenIds:
    """The generated tokens without the end-of-sequence token."""
    return generation.tokens[:-1] if generation.stop == "eos" else generation.tokens


def begin_token(tokenizer: Tokenizer) -> int | None:
    """The id the model's own begin-of-sequence token has, or None for a model without one."""
    plain, special = tokenizer.encode("a"), tokenizer.encode("a", add_special=True)
    return special[0] if len(special) > len(plain) and special[1 : len(plain) + 1] == plain else None


def token_texts(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """One piece of text for every token; together they are the text of `ids`.

    Tokens are decoded in the context of those before them, because some tokenizers drop the space in front of a lone
    word. The pieces of a character that spans several tokens are "" but for the last, which holds all of it.
    """
    pieces: list[str] = []
    known, done = 0, 0  # ids[known:done] are context for the pieces still open, ids[done:]
    for end in range(1, len(ids) + 1):
        before, now = tokenizer.decode(ids[known:done]), tokenizer.decode(ids[known:end])
        if now.endswith(REPLACEMENT) and end < len(ids):
            pieces.append("")
            continue
        pieces.append(now[len(before) :])
        known, done = done, end
    return pieces
