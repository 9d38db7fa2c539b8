"""How a stock vLLM is made to decode given tokens: a text it must write, and a bias that says in which tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from refract.engine import Tokenizer
from refract.work import TokenIds

_LEVELS = 4  # of bias, so that two that compete are at least 25 apart
_MOST = 100.0  # vLLM clips logit_bias there
_BROKEN = "\ufffd"  # what bytes decode to that are no whole character
LONGEST = 512  # tokens of one request: a longer text takes long to compile


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """The first `count` of some tokens as `text`, and the bias of each that makes the model write them so."""

    count: int
    text: str
    bias: Mapping[int, float]


def pieces(tokenizer: Tokenizer, tokens: Sequence[int]) -> list[str]:
    """Each token's text in the middle of a text; it holds U+FFFD where the token is no whole character."""
    anchor = tokenizer.encode("a")
    start = len(tokenizer.decode(anchor))
    known = {token: tokenizer.decode((*anchor, token))[start:] for token in set(tokens)}
    return [known[token] for token in tokens]


def first_stretch(tokens: TokenIds, texts: Sequence[str], unforcible: frozenset[int]) -> Stretch | None:
    """As many of the first tokens as one text and one bias can force; None where not even the first can be.

    A grammar allows every token that begins what is left of the text: "l", "lo" and "low" for "lower". The bias has to
    put the right one above all others of the stretch, wherever they compete, and there are only so many levels of it.
    """
    most = min(_clean(tokens, texts, unforcible), LONGEST)
    if most == 0:
        return None
    best = 1
    low, high = 1, most
    while low <= high:  # forcible for so many, so forcible for fewer
        middle = (low + high) // 2
        if _levels(tokens[:middle], texts[:middle]) is not None:
            best, low = middle, middle + 1
        else:
            high = middle - 1
    levels = _levels(tokens[:best], texts[:best]) or {}
    top = max(levels.values(), default=0) + 1
    bias = {token: _MOST * (level + 1) / top for token, level in levels.items()}
    return Stretch(count=best, text="".join(texts[:best]), bias=bias)


def _clean(tokens: TokenIds, texts: Sequence[str], unforcible: frozenset[int]) -> int:
    """How many of the first tokens are whole text by themselves."""
    for place, (token, text) in enumerate(zip(tokens, texts, strict=True)):
        if not text or _BROKEN in text or token in unforcible:
            return place
    return len(tokens)


def _levels(tokens: TokenIds, texts: Sequence[str]) -> dict[int, int] | None:
    """A level for every token, above that of each it competes with; None where they go round in circles or too high."""
    own = dict(zip(tokens, texts, strict=True))
    below: dict[int, set[int]] = {token: set() for token in own}
    rest = "".join(texts)
    for token, text in zip(tokens, texts, strict=True):
        below[token] |= {other for other, piece in own.items() if other != token and rest.startswith(piece)}
        rest = rest[len(text) :]
    levels: dict[int, int] = {}
    while len(levels) < len(own):
        ready = [token for token in own if token not in levels and below[token] <= levels.keys()]
        if not ready:
            return None
        for token in ready:
            levels[token] = max((levels[other] + 1 for other in below[token]), default=0)
    return levels if max(levels.values()) < _LEVELS else None
