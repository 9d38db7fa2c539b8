"""Haystacks: stretches of the corpus with facts hidden in them, in prompts of exactly the tokens asked for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

from refract.axes.windows import beginning
from refract.data.corpus import Corpus
from refract.engine import Tokenizer
from refract.work import Message, TokenIds

_SAMPLE_CHARS = 2000
_SENTENCE = re.compile(r"(?<=[.!?。！？])\s+|\n+|(?<=[。！？])")
_REACH_CHARS = 300
_STEADY_CHARS = 256  # places for facts move in steps of this while the text is trimmed, so that single characters count
_CHARS_PER_TOKEN = 4
_COARSE_TRIES, _FINE_TRIES, _SHIFTS = 24, 4, 4
_FINE_TOKENS, _SPARE_TOKENS, _TAIL_CHARS = 16, 4, 400
_AFTER = "\n\nQuestion: "


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
        Haystack(id=f"haystack-{i:03d}", text=corpus.text[start : min(i * step + step, start + 2 * size)])
        for i, start in enumerate(starts)
    )


def _most_chars_per_token(corpus: Corpus, tokenizer: Tokenizer) -> float:
    samples = [corpus.text[s.start : min(s.end, s.start + _SAMPLE_CHARS)] for s in corpus.sections]
    return max(len(sample) / max(1, len(tokenizer.encode(sample))) for sample in samples)


def fit_prompt(
    tokenizer: Tokenizer, haystack: Haystack, facts: Sequence[str], question: str, *, position: float, length: int
) -> Fitted | int:
    """The prompt of exactly `length` rendered tokens, the first fact at `position` and the others spread from there.

    Where no cut of the text gives that length exactly, the nearest shorter one found. Too little text, or a question
    and template that alone exceed `length`: the length that can be had instead.
    """
    places = [position, *((position + i / len(facts)) % 1.0 for i in range(1, len(facts)))]
    best = Fitted(prompt=(), depth=0.0)
    for shift in range(_SHIFTS):
        text = haystack.text[shift:]
        found = _trim(
            partial(_render, tokenizer, text, facts, places, question),
            partial(_tail_tokens, tokenizer, text),
            len(text),
            length,
        )
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
    content = f"Read the following text. A question comes after it.\n\n{hidden}{_AFTER}{question}\nAnswer:"
    return tokenizer.render((Message(role="user", content=content),))


def _tail_tokens(tokenizer: Tokenizer, text: str, start: int, end: int) -> int:
    return len(tokenizer.encode(text[start:end] + _AFTER))


def _depth(hidden: str, fact: str) -> float:
    return hidden.index(fact) / max(1, len(hidden) - len(fact))


def _trim(
    render: Callable[[int], TokenIds], tail: Callable[[int, int], int], available: int, length: int
) -> tuple[int, TokenIds] | int:
    """(characters, ids) whose ids are `length`, or as few below it as can be found; an int where that cannot be had.

    Interpolation brings the number of characters near. From there on only the end of the text is tokenised to find a
    cut that gives what is missing, and the whole prompt then confirms it.
    """
    shortest = render(0)
    if len(shortest) > length:
        return len(shortest)
    chars, ids = _near(render, shortest, available, length)
    missing = length - len(ids)
    if missing > 0 and chars == available:
        return len(ids)
    best = (chars, ids) if missing >= 0 else (0, shortest)
    for wanted in range(missing, missing - _SPARE_TOKENS, -1) if missing else ():
        for cut in islice(_cuts(tail, chars, wanted, available), _FINE_TRIES):
            ids = render(cut)
            best = (cut, ids) if len(best[1]) < len(ids) <= length else best
            if len(ids) == length:
                return best
    return best


def _near(render: Callable[[int], TokenIds], shortest: TokenIds, available: int, length: int) -> tuple[int, TokenIds]:
    """(characters, ids) within a few tokens of `length`, or all the text where it does not reach that far.

    Steps by the ratio seen until `length` lies between two numbers of characters, then interpolation and halving in
    turn, because text and code differ in characters a token.
    """
    low, high = (0, len(shortest)), (available, 0)  # (characters, tokens); no tokens: not reached yet
    chars, ids = min(available, length - len(shortest)), shortest
    for turn in range(_COARSE_TRIES):
        ids = render(chars)
        if abs(length - len(ids)) <= _FINE_TOKENS or (chars == available and len(ids) < length):
            break
        if len(ids) < length:
            low = chars, len(ids)
        else:
            high = chars, len(ids)
        if not high[1]:
            reach = low[0] * (length - len(shortest)) // max(1, low[1] - len(shortest))
            chars = min(available, max(reach, low[0] + _FINE_TOKENS))
        elif turn % 2:
            chars = (low[0] + high[0]) // 2
        else:
            chars = low[0] + (high[0] - low[0]) * (length - low[1]) // (high[1] - low[1])
    return chars, ids


def _cuts(tail: Callable[[int, int], int], chars: int, missing: int, available: int) -> Iterator[int]:
    """Numbers of characters that, judging by the end of the text, give `missing` tokens more than `chars` does."""
    start = max(0, chars - _TAIL_CHARS)
    now, guess = tail(start, chars), chars + missing * _CHARS_PER_TOKEN
    for step in range(2 * _REACH_CHARS):
        cut = guess + (step + 1) // 2 * (1 if step % 2 else -1)
        if start < cut <= available and tail(start, cut) == now + missing:
            yield cut


def hide(text: str, facts: Sequence[str], places: Sequence[float]) -> str:
    """`text` with each fact at its place, a share of the text from 0 to 1, between sentences where there are any."""
    steady = len(text) - len(text) % _STEADY_CHARS or len(text)
    cuts = [len(text) if place >= 1.0 else _between_sentences(text, int(place * steady)) for place in places]
    for cut, _, fact in sorted(zip(cuts, range(len(facts)), facts, strict=True), reverse=True):
        text = _inserted(text[:cut], fact, text[cut:])
    return text


def _inserted(before: str, fact: str, after: str) -> str:
    """The fact on a line of its own after the end of a line, elsewhere with a space on each side."""
    lead = "" if not before or before[-1].isspace() else " "
    trail = "" if not after else "\n" if before.endswith("\n") else "" if after[0].isspace() else " "
    return f"{before}{lead}{fact}{trail}{after}"


def _between_sentences(text: str, at: int) -> int:
    """The end of a sentence or line nearest to `at`, else of a word, else `at`; 0 stays 0."""
    if at == 0:
        return 0
    start = max(0, at - _REACH_CHARS)
    nearby = text[start : at + _REACH_CHARS]
    ends = [start + m.end() for m in _SENTENCE.finditer(nearby)] or [start + m.end() for m in re.finditer(" ", nearby)]
    return min(ends, key=lambda end: abs(end - at), default=at)
