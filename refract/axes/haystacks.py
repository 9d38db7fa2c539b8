"""Haystacks: stretches of the corpus with facts hidden in them, in prompts of exactly the tokens asked for."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from refract.axes.windows import beginning
from refract.data.corpus import Corpus
from refract.engine import Tokenizer
from refract.work import Message, TokenIds

_SAMPLE_CHARS = 2000
_SENTENCE = re.compile(r"(?<=[.!?。！？])\s+|\n+|(?<=[。！？])")
_REACH_CHARS = 300
_STEADY_CHARS = 256  # places for facts move in steps of this while the text is trimmed, so that single characters count
_CHARS_PER_TOKEN = 4  # a first guess
_TRIES, _FINE_TOKENS, _SHIFTS = 60, 4, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Haystack:
    """A stretch of the corpus, of which a prompt takes as much from the start as it needs."""

    id: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A rendered prompt, and where in its haystack the first fact lies, 0 … 1."""

    prompt: TokenIds
    depth: float


def cut_haystacks(corpus: Corpus, tokenizer: Tokenizer, *, longest: int, count: int) -> tuple[Haystack, ...]:
    """Up to `count` disjoint haystacks at even distances, each enough for `longest` tokens; one if the corpus is short.

    Prompts that share a haystack are one cluster.
    """
    size = int(longest * _most_chars_per_token(corpus, tokenizer) * 1.1) + 2 * _REACH_CHARS
    fitting = max(1, min(count, len(corpus.text) // size))
    step = len(corpus.text) // fitting
    starts = [beginning(corpus.text, i * step) for i in range(fitting)]
    return tuple(
        Haystack(id=f"haystack-{i:03d}", text=corpus.text[start : i * step + step]) for i, start in enumerate(starts)
    )


def _most_chars_per_token(corpus: Corpus, tokenizer: Tokenizer) -> float:
    samples = [corpus.text[s.start : min(s.end, s.start + _SAMPLE_CHARS)] for s in corpus.sections]
    return max(len(sample) / max(1, len(tokenizer.encode(sample))) for sample in samples)


def fit_prompt(
    tokenizer: Tokenizer, haystack: Haystack, facts: Sequence[str], question: str, *, position: float, length: int
) -> Fitted | int:
    """The prompt of exactly `length` rendered tokens with the first fact at `position` and the others spread from there.

    Where no cut of the text gives that length exactly, the nearest shorter one found. Too little text, or a question
    and template that alone exceed `length`: the length that can be had instead.
    """
    places = [position, *((position + i / len(facts)) % 1.0 for i in range(1, len(facts)))]
    best = Fitted(prompt=(), depth=0.0)
    for shift in range(_SHIFTS):
        text = haystack.text[shift:]
        found = _trim(partial(_render, tokenizer, text, facts, places, question), len(text), length)
        if isinstance(found, int):
            return found
        chars, ids = found
        if len(ids) > len(best.prompt):
            best = Fitted(prompt=ids, depth=_depth(hide(text[:chars], facts, places), facts[0]))
        if len(ids) == length:
            break
    return best


def _render(
    tokenizer: Tokenizer, text: str, facts: Sequence[str], places: Sequence[float], question: str, chars: int
) -> TokenIds:
    hidden = hide(text[:chars], facts, places)
    content = f"Read the following text. A question comes after it.\n\n{hidden}\n\nQuestion: {question}\nAnswer:"
    return tokenizer.render((Message(role="user", content=content),))


def _depth(hidden: str, fact: str) -> float:
    return hidden.index(fact) / max(1, len(hidden) - len(fact))


def _trim(render: Callable[[int], TokenIds], available: int, length: int) -> tuple[int, TokenIds] | int:
    """(characters, ids) whose ids are `length`, or as few below it as can be found; an int where that cannot be had.

    Steps by the ratio seen bring the number of characters near, single characters do the rest: in most texts a character
    more adds at most one token, so that every length on the way is met.
    """
    best = 0, render(0)
    bare = len(best[1])
    if bare > length:
        return bare
    chars, seen = (length - bare) * _CHARS_PER_TOKEN, set[int]()
    for _ in range(_TRIES):
        chars = min(max(chars, 0), available)
        if chars in seen:
            break
        seen.add(chars)
        ids = render(chars)
        missing = length - len(ids)
        if missing > 0 and chars == available:
            return len(ids)
        if missing >= 0 and len(ids) > len(best[1]):
            best = chars, ids
        if missing == 0:
            break
        ratio = chars / max(1, len(ids) - bare)
        coarse = round(missing * ratio)
        chars += coarse if abs(missing) > _FINE_TOKENS and coarse else (1 if missing > 0 else -1)
    return best


def hide(text: str, facts: Sequence[str], places: Sequence[float]) -> str:
    """`text` with each fact at its place, a share of the text from 0 to 1, between sentences where there are any."""
    steady = len(text) - len(text) % _STEADY_CHARS or len(text)
    cuts = [len(text) if place >= 1.0 else _between_sentences(text, int(place * steady)) for place in places]
    pieces: list[str] = []
    done = 0
    for cut, fact in sorted(zip(cuts, facts, strict=True), key=lambda pair: pair[0]):
        pieces += [text[done:cut], fact]
        done = cut
    return _joined([*pieces, text[done:]])


def _joined(pieces: Sequence[str]) -> str:
    """The pieces in a row, with a space where none is."""
    whole = ""
    for piece in filter(None, pieces):
        apart = not whole or whole[-1].isspace() or piece[0].isspace()
        whole += piece if apart else f" {piece}"
    return whole


def _between_sentences(text: str, at: int) -> int:
    """The end of a sentence or line nearest to `at`, else of a word, else `at`; 0 stays 0."""
    if at == 0:
        return 0
    start = max(0, at - _REACH_CHARS)
    nearby = text[start : at + _REACH_CHARS]
    ends = [start + m.end() for m in _SENTENCE.finditer(nearby)] or [start + m.end() for m in re.finditer(" ", nearby)]
    return min(ends, key=lambda end: abs(end - at), default=at)
