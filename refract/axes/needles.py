"""Needles: invented, neutral facts with one answer each, and whether an answer text holds it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Outcome = Literal["hit", "miss", "thinking"]

DISTRACTORS = 3
_ATTEMPTS = 64

_LANDMARKS = (
    ("the Eiffel Tower", "France"),
    ("the Colosseum", "Italy"),
    ("the Taj Mahal", "India"),
    ("Mount Fuji", "Japan"),
    ("the Acropolis", "Greece"),
    ("the Brandenburg Gate", "Germany"),
    ("the Great Sphinx", "Egypt"),
    ("the Great Barrier Reef", "Australia"),
    ("Machu Picchu", "Peru"),
    ("the Alhambra", "Spain"),
)
_TRADES = ("beekeeper", "clockmaker", "gardener", "baker", "potter", "violinist", "ferryman", "weaver")
_BUILDINGS = ("lighthouse", "windmill", "library", "bridge", "harbour", "observatory", "theatre", "railway station")
_CONSONANTS, _VOWELS = "bdfgklmnprstvz", "aeiou"

# How models mark the thinking part of an answer: (opened by, closed by).
_THINKING = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("[THINK]", "[/THINK]"),
    ("◁think▷", "◁/think▷"),
    ("<|channel|>analysis", "<|channel|>final"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Needle:
    """Sentences to hide, the first at the place asked for, with a question that `answer` alone answers.

    `rivals` are wrong answers that are hidden too; `names` are all invented words, none of which the haystack may hold.
    """

    family: str
    facts: tuple[str, ...]
    question: str
    answer: str
    rivals: tuple[str, ...] = ()
    names: tuple[str, ...]


Draw = Callable[[str, int], int]
"""A label and a number of choices to the one taken."""


def _literal(draw: Draw) -> Needle:
    building, place, year = _building(draw), _name(draw, "place"), _figure(draw, "year")
    return Needle(
        family="literal",
        facts=(f"The {building} of {place} was built with {year} stones.",),
        question=f"With how many stones was the {building} of {place} built? Answer with the number only.",
        answer=year,
        names=(place, year),
    )


def _multi_key(draw: Draw) -> Needle:
    """The same fact about several places: only the one asked for is right."""
    building = _building(draw)
    places = [_name(draw, f"place{i}") for i in range(DISTRACTORS + 1)]
    figures = [_figure(draw, f"figure{i}") for i in range(DISTRACTORS + 1)]
    return Needle(
        family="multi-key",
        facts=tuple(f"The {building} of {p} was built with {f} stones." for p, f in zip(places, figures, strict=True)),
        question=f"With how many stones was the {building} of {places[0]} built? Answer with the number only.",
        answer=figures[0],
        rivals=tuple(figures[1:]),
        names=(*places, *figures),
    )


def _non_literal(draw: Draw) -> Needle:
    """Question and fact share no word that leads from one to the other (as NoLiMa, arXiv:2502.05167)."""
    person, trade = _name(draw, "person"), _TRADES[draw("trade", len(_TRADES))]
    landmark, country = _LANDMARKS[draw("landmark", len(_LANDMARKS))]
    return Needle(
        family="non-literal",
        facts=(f"{person} the {trade} can see {landmark} from the kitchen window.",),
        question=f"What is the name of the {trade} who lives in {country}? Answer with the name only.",
        answer=person,
        names=(person,),
    )


def _two_hop(draw: Draw) -> Needle:
    """Two facts in two places, of which the first names whom the second is about."""
    building, place = _building(draw), _name(draw, "place")
    person, count = _name(draw, "person"), _figure(draw, "count")
    return Needle(
        family="two-hop",
        facts=(
            f"The {building} of {place} is looked after by {person}.",
            f"{person} has collected {count} stamps.",
        ),
        question=(
            f"How many stamps has the person collected who looks after the {building} of {place}? "
            "Answer with the number only."
        ),
        answer=count,
        names=(place, person, count),
    )


FAMILIES: Mapping[str, Callable[[Draw], Needle]] = MappingProxyType(
    {"literal": _literal, "multi-key": _multi_key, "non-literal": _non_literal, "two-hop": _two_hop}
)


def make_needle(family: str, haystack: str, *, seed: int, trial: int) -> Needle | None:
    """The needle of this trial, none of whose names or figures occurs in `haystack`; None if every try did.

    The same for the same arguments everywhere, and another for every trial.
    """
    hay = haystack.casefold()
    for attempt in range(_ATTEMPTS):
        needle = FAMILIES[family](_draw(seed, trial, attempt))
        names = [name.casefold() for name in needle.names]
        if len(set(names)) == len(names) and not any(name in hay for name in names):
            return needle
    return None


def _draw(seed: int, trial: int, attempt: int) -> Draw:
    def draw(label: str, choices: int) -> int:
        digest = hashlib.sha256(f"{seed}/{trial}/{attempt}/{label}".encode()).digest()
        return int.from_bytes(digest[:8], "big") % choices

    return draw


def _name(draw: Draw, label: str) -> str:
    """An invented name of three syllables, such as Velumo."""
    syllables = [
        _CONSONANTS[draw(f"{label}/c{i}", len(_CONSONANTS))] + _VOWELS[draw(f"{label}/v{i}", len(_VOWELS))]
        for i in range(3)
    ]
    return "".join(syllables).capitalize()


def _building(draw: Draw) -> str:
    return _BUILDINGS[draw("building", len(_BUILDINGS))]


def _figure(draw: Draw, label: str) -> str:
    """Four digits that are no year of our time."""
    return str(2200 + draw(label, 7800))


def judge(text: str, needle: Needle, *, thinking: bool = False) -> Outcome:
    """Whether `text` answers the needle's question: the answer as whole words, and before any rival.

    Only what follows the thinking part counts. "thinking" when that part was not finished; with `thinking` the prompt
    had opened it already.
    """
    said = _after_thinking(text, opened=thinking)
    if said is None:
        return "thinking"
    words = _words(said)
    at = _place(words, needle.answer)
    rivals = [place for rival in needle.rivals if (place := _place(words, rival)) is not None]
    return "hit" if at is not None and all(at < place for place in rivals) else "miss"


def opens_thinking(prompt_tail: str) -> bool:
    """Whether a prompt that ends like this has opened a thinking part and not closed it."""
    return any(prompt_tail.rfind(opened) > prompt_tail.rfind(closed) for opened, closed in _THINKING)


def _after_thinking(text: str, *, opened: bool) -> str | None:
    """What follows the last thinking part, all of it without one, None while it lasts."""
    ends = [text.rfind(closed) + len(closed) for _, closed in _THINKING if closed in text]
    begins = [text.rfind(start) for start, _ in _THINKING if start in text]
    if ends:
        return text[max(ends) :] if max(begins, default=-1) < max(ends) else None
    return None if opened or begins else text


def _words(text: str) -> list[str]:
    """Words and numbers, lower-case, thousands separators gone."""
    joined = re.sub(r"(?<=\d)[,\u00a0\u202f'’](?=\d{3}(?!\d))", "", text)
    return re.findall(r"\w+", joined.casefold())


def _place(words: Sequence[str], answer: str) -> int | None:
    """Where the words of `answer` occur in a row for the first time."""
    wanted = _words(answer)
    starts = range(len(words) - len(wanted) + 1)
    return next((i for i in starts if list(words[i : i + len(wanted)]) == wanted), None)
