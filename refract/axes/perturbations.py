"""Small changes of a request that leave its meaning alone: the same for the same seed, prompt and kind, everywhere."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from refract.axes.protected import Span, protected_spans
from refract.axes.synonyms import SYNONYMS

# Words of prose: letters only, and not part of an identifier, path, tag, address or assignment.
_WORD = re.compile(r"(?<![\w/\\.@#$%<=-])[^\W\d_]+(?![\w/\\@(<=-]|[.:]\w)")
_SPACE = re.compile(r"(?<=\S) (?=\S)")
_TYPO_LETTERS = 5
_END_MARKS = ".?!。？！؟…"


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """`text` with `before`, found at character `at`, replaced by `after`."""

    text: str
    at: int
    before: str
    after: str


Choose = Callable[[int], int]
"""The number of choices to the one taken."""
_Kind = Callable[[str, Sequence[Span], Choose], Edit | None]


def perturb(text: str, kind: str, *, seed: int, prompt_id: str) -> Edit | None:
    """The change of this kind, or None where it does not apply. Code and data inside `text` are never touched.

    Which place is changed follows from sha256 of seed, prompt id and kind. Raises: KeyError for an unknown kind.
    """
    digest = hashlib.sha256("\0".join((str(seed), prompt_id, kind)).encode()).digest()
    number = int.from_bytes(digest[:8], "big")
    return PERTURBATIONS[kind](text, protected_spans(text), lambda count: number % count)


def _edit(text: str, at: int, before: str, after: str) -> Edit:
    return Edit(text=text[:at] + after + text[at + len(before) :], at=at, before=before, after=after)


def _words(text: str, spans: Sequence[Span]) -> list[tuple[int, str]]:
    """(place, word) of every word of prose."""
    return [(m.start(), m.group()) for m in _WORD.finditer(text) if not _inside(m.start(), spans)]


def _inside(at: int, spans: Sequence[Span]) -> bool:
    return any(start <= at < end for start, end in spans)


def _typo(text: str, spans: Sequence[Span], choose: Choose) -> Edit | None:
    """Two neighbouring letters inside a lower-case word change places."""
    swaps = [
        (at + i, word[i : i + 2])
        for at, word in _words(text, spans)
        if len(word) >= _TYPO_LETTERS and word.islower()
        for i in range(1, len(word) - 2)
        if word[i] != word[i + 1]
    ]
    if not swaps:
        return None
    at, pair = swaps[choose(len(swaps))]
    return _edit(text, at, pair, pair[::-1])


def _case(text: str, spans: Sequence[Span], choose: Choose) -> Edit | None:
    """The first letter of the first word of prose is written the other way."""
    for at, word in _words(text, spans)[:1]:
        letter, other = word[0], word[0].swapcase()
        if other != letter and len(other) == 1:
            return _edit(text, at, letter, other)
    return None


def _punct(text: str, spans: Sequence[Span], choose: Choose) -> Edit | None:
    """The mark that ends the message is dropped, or a full stop is put where there is none."""
    end = len(text.rstrip())
    if not end or _inside(end - 1, spans):
        return None
    last = text[end - 1]
    if last in _END_MARKS:
        single = end < 2 or text[end - 2] not in _END_MARKS
        return _edit(text, end - 1, last, "") if single else None
    return _edit(text, end, "", ".") if last.isalnum() and last.lower() != last.upper() else None


def _paraphrase(text: str, spans: Sequence[Span], choose: Choose) -> Edit | None:
    """One word is replaced by a synonym, its capital kept."""
    known = [(at, word) for at, word in _words(text, spans) if word.lower() in SYNONYMS]
    known = [(at, word) for at, word in known if word.islower() or word.istitle()]
    if not known:
        return None
    at, word = known[choose(len(known))]
    other = SYNONYMS[word.lower()]
    return _edit(text, at, word, other.capitalize() if word.istitle() else other)


def _spacing(text: str, spans: Sequence[Span], choose: Choose) -> Edit | None:
    """A space between two words is doubled."""
    places = [m.start() for m in _SPACE.finditer(text) if not _inside(m.start(), spans)]
    return _edit(text, places[choose(len(places))], " ", "  ") if places else None


PERTURBATIONS: Mapping[str, _Kind] = MappingProxyType(
    {"typo": _typo, "case": _case, "punct": _punct, "paraphrase": _paraphrase, "spacing": _spacing}
)
