"""One text that llama-perplexity reads as exactly the wanted windows of token ids, or an error before anything runs.

The tool takes text only. It cuts the token list every n_ctx tokens and, where the model has a begin-of-sequence token,
puts that in the place of each chunk's first token (tools/perplexity/perplexity.cpp, b11434): there a filler stands.
Where two windows cannot follow each other without changing tokens at the seam, a chunk of fillers comes between them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from refract.engine import Tokenizer
from refract.errors import EngineError
from refract.work import TokenIds, Window

_FILLERS = (" the", "\n", " a", ".", ",", " of", "\n\n", ";", " x", "0", ")", "the")
_EDGE_TOKENS, _CONTEXT_TOKENS = 24, 64  # on either side of a seam: what must stay as it is, and what is read


@dataclass(frozen=True, slots=True, kw_only=True)
class ForcedText:
    """`text` whose tokens are `tokens`; `chunks` holds for each n_ctx of them which window it is, None for filling."""

    text: str
    tokens: TokenIds
    chunks: tuple[int | None, ...]


def forced_text(windows: Sequence[Window], tokenizer: Tokenizer) -> ForcedText:
    """The text of windows of one length. Raises: EngineError when the tokenizer reads no text as these windows."""
    prefix = tokenizer.encode("", add_special=True)
    builder = _Builder(tokenizer, prefix, len(windows[0].tokens))
    for number, window in enumerate(windows):
        builder.add(number, window.tokens)
    if len(builder.chunks) < 2:  # the tool wants at least two chunks
        builder.add_filling(then=())
    tokens, rest = tuple(builder.tokens), builder.ending()
    text = tokenizer.decode((*tokens, *rest)[len(prefix) :])
    if tokenizer.encode(text, add_special=True)[: len(tokens)] != tokens:
        raise _impossible("the whole text reads as other tokens")
    return ForcedText(text=text, tokens=tokens, chunks=tuple(builder.chunks))


class _Builder:
    """Tokens of chunks so far; every seam is checked as it is made."""

    def __init__(self, tokenizer: Tokenizer, prefix: TokenIds, size: int) -> None:
        if len(prefix) > 1:
            raise _impossible(f"its tokenizer begins every text with {len(prefix)} tokens")
        self.tokenizer, self.prefix, self.size = tokenizer, prefix, size
        self.tokens: list[int] = list(prefix)
        self.chunks: list[int | None] = []

    def add(self, number: int, window: TokenIds) -> None:
        if window[: len(self.prefix)] != self.prefix:
            raise _impossible("a window does not begin with the begin-of-sequence token")
        body = window[len(self.prefix) :]
        if self.prefix and self.chunks:
            self.tokens.append(self._filler(body))
        elif not self._seam(body):
            self.add_filling(then=body)
        self.tokens.extend(body)
        self.chunks.append(number)

    def add_filling(self, *, then: TokenIds) -> None:
        """A chunk that is not looked at, whose beginning and end suit what is beside it."""
        common = next((t for t in self._known_fillers() if self._seam((t, t, t))), None)
        if common is None:
            common = next(self._known_fillers(), None)
        if common is None:
            raise _impossible("no common word is a token of its own")
        count = self.size - len(self.tokens) % self.size
        if not self._seam((common, common)):
            self.tokens.append(self._filler((common, common)))
            count -= 1
        self.tokens.extend([common] * (count - 1))
        self.tokens.append(self._filler(then))
        self.chunks.append(None)

    def ending(self) -> TokenIds:
        """What must follow so that the last token stays itself: a window may end within a character."""
        return () if self._seam(()) else (self._filler(()),)

    def _filler(self, body: TokenIds) -> int:
        """A token that can stand between what there is and `body`: a common one, else any."""
        for token in chain(self._known_fillers(), range(self.tokenizer.vocab_size)):
            if self._seam((token, *body)):
                return token
        raise _impossible("no token can stand before one of the windows")

    def _known_fillers(self) -> Iterator[int]:
        ids = (self.tokenizer.encode(text) for text in _FILLERS)
        return (found[0] for found in ids if len(found) == 1)

    def _seam(self, right: TokenIds) -> bool:
        """Whether `right` may follow: the tokens on both sides of the seam, as text, read as themselves.

        What lies further from the seam may read otherwise, as both ends are cut from longer text.
        """
        left = tuple(self.tokens[len(self.prefix) :][-_CONTEXT_TOKENS:])
        begins = len(self.tokens) - len(self.prefix) <= _CONTEXT_TOKENS
        read = self.tokenizer.encode(self.tokenizer.decode(left + right[:_CONTEXT_TOKENS]))
        core = left[-_EDGE_TOKENS:] + right[:_EDGE_TOKENS]
        if begins:
            core = left + right[:_EDGE_TOKENS]
            return read[: len(core)] == core
        return any(read[at : at + len(core)] == core for at in range(len(read) - len(core) + 1))


def _impossible(why: str) -> EngineError:
    return EngineError(
        f"llama-perplexity takes text, and no text gives it these windows: {why}",
        hint="use the bundled corpus, or another --corpus of ordinary prose",
    )
