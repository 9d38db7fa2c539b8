"""Windows of token ids cut from a corpus: the same for every configuration, and without tokenising more than needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from refract.axes.tokens import begin_token
from refract.data.corpus import Corpus, Section
from refract.engine import Tokenizer
from refract.errors import CorpusError
from refract.work import TokenIds

CHARS_PER_TOKEN = 8  # of a slice; prose has 4 to 5, so most slices need no second try
_CUT_TOKENS = 16  # at the end of a slice tokens may differ from those of the whole text
_SHIFT_TOKENS = 64  # how far a window may move to begin and end where text can be cut
_EDGE_TOKENS = 24  # of either end of a window, enough to see whether a cut changes them
_LINE_CHARS, _WORD_CHARS = 400, 60


@dataclass(frozen=True, slots=True, kw_only=True)
class TextWindow:
    """`tokens` from a section of the corpus, the begin-of-sequence token first where the model has one."""

    category: str
    tokens: TokenIds


def cut_windows(corpus: Corpus, tokenizer: Tokenizer, *, count: int, size: int) -> tuple[TextWindow, ...]:
    """`count` windows of exactly `size` tokens, deterministic and disjoint.

    One section: consecutive windows from its start, the first token of each replaced by the begin-of-sequence token
    where the model has one, so that they are those of llama-perplexity (tools/perplexity/perplexity.cpp, b11434).
    Several sections: they take turns, and within each the windows are evenly spread and begin near a line's beginning,
    at a word where one is found whose neighbours in any order leave the tokens as they are. An engine that takes text
    instead of token ids can then be given the windows' texts one after the other.

    Raises: CorpusError when there is too little text.
    """
    begin = begin_token(tokenizer)
    if len(corpus.sections) == 1:
        return tuple(_consecutive(corpus, tokenizer, begin, count, size))
    shares = [len(range(i, count, len(corpus.sections))) for i in range(len(corpus.sections))]
    queues = [
        iter(_spread(corpus, section, tokenizer, begin, share, size))
        for section, share in zip(corpus.sections, shares, strict=True)
    ]
    return tuple(next(queues[i % len(queues)]) for i in range(count))


def _consecutive(
    corpus: Corpus, tokenizer: Tokenizer, begin: int | None, count: int, size: int
) -> Iterator[TextWindow]:
    ids = _prefix(corpus.text, tokenizer, count * size, add_special=True)
    if len(ids) < count * size:
        raise _too_short(corpus.name, needed=count * size, found=len(ids))
    for start in range(0, count * size, size):
        own = ids[start : start + size]
        yield TextWindow(category=corpus.sections[0].category, tokens=own if begin is None else (begin, *own[1:]))


def _prefix(text: str, tokenizer: Tokenizer, needed: int, *, add_special: bool = False) -> TokenIds:
    """At least `needed` leading tokens of `text`, as the whole text would give them; fewer if it has no more."""
    chars = needed * CHARS_PER_TOKEN
    while True:
        ids = tokenizer.encode(text[:chars], add_special=add_special)
        if chars >= len(text) or len(ids) >= needed + _CUT_TOKENS:
            return ids
        chars *= 2


def _spread(
    corpus: Corpus, section: Section, tokenizer: Tokenizer, begin: int | None, count: int, size: int
) -> list[TextWindow]:
    """Windows from evenly spaced places; if one of these holds too few, evenly from the tokens of the whole section."""
    text = corpus.text[section.start : section.end]
    own = size if begin is None else size - 1
    bodies = [_slot(text, tokenizer, i, count, own) for i in range(count)]
    if any(len(body) < own for body in bodies):
        bodies = _even(tokenizer.encode(text), count, size)
        if len(bodies) < count:
            name = f"{corpus.name}/{section.category}"
            raise _too_short(name, needed=count * size, found=len(tokenizer.encode(text)))
    first = () if begin is None else (begin,)
    return [TextWindow(category=section.category, tokens=(*first, *body[:own])) for body in bodies]


def _slot(text: str, tokenizer: Tokenizer, index: int, count: int, size: int) -> TokenIds:
    """The leading tokens of the `index`-th of `count` equal parts of `text`."""
    start, end = len(text) * index // count, len(text) * (index + 1) // count
    ids = _prefix(text[beginning(text, start) : end], tokenizer, size + _SHIFT_TOKENS)
    return ids[_shift(ids, tokenizer, size) :]


def _shift(ids: TokenIds, tokenizer: Tokenizer, size: int) -> int:
    """Where in `ids` a window of `size` tokens can be cut without changing the tokens at its ends.

    The first place where it begins with a space and a word, else the first at all, else 0.
    """
    places = range(max(0, min(_SHIFT_TOKENS, len(ids) - size)) + 1)
    words = (at for at in places if _begins_word(tokenizer.decode(ids[at : at + 2])))
    sound = (at for at in (*words, *places) if _separable(ids[at : at + size], tokenizer))
    return next(sound, 0)


def _separable(window: TokenIds, tokenizer: Tokenizer) -> bool:
    """Whether the window's own end before its own beginning reads as the same tokens."""
    head, tail = window[:_EDGE_TOKENS], window[-_EDGE_TOKENS:]
    return all(tokenizer.encode(tokenizer.decode(edge)) == edge for edge in (head, tail, tail + head))


def _begins_word(text: str) -> bool:
    return text[:1] == " " and text[1:2].isalnum()


def beginning(text: str, at: int) -> int:
    """`at`, moved on to the next line or else the next word if one begins nearby."""
    if at == 0:
        return 0
    for separator, reach in (("\n", _LINE_CHARS), (" ", _WORD_CHARS)):
        found = text.find(separator, at - 1, at + reach)
        if found >= 0:
            return found + 1
    return at


def _even(ids: TokenIds, count: int, size: int) -> list[TokenIds]:
    """`count` disjoint stretches of `size` tokens at even distances, or none if they do not fit."""
    spare = len(ids) - count * size
    if spare < 0:
        return []
    starts = [i * size + spare * i // max(1, count - 1) for i in range(count)]
    return [ids[start : start + size] for start in starts]


def _too_short(name: str, *, needed: int, found: int) -> CorpusError:
    return CorpusError(
        f"{name} is too short: {needed} tokens needed, {found} found",
        hint="lower --chunks or --ctx, or name a longer text with --corpus",
    )


def distinct(windows: Sequence[TextWindow]) -> tuple[tuple[TextWindow, ...], int]:
    """The windows without later copies of the same tokens, and how many copies there were."""
    first = {window.tokens: window for window in reversed(windows)}
    kept = tuple(window for window in windows if first[window.tokens] is window)
    return kept, len(windows) - len(kept)
