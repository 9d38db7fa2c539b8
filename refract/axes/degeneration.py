"""What is visibly wrong with generated text, found by comparing each answer with the reference's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from refract.axes.tokens import REPLACEMENT, content
from refract.stats.sequences import edit_distance, ngram_loop
from refract.work import Generation

Flag = Literal["empty", "immediate-end", "loop", "runaway", "invalid-utf8"]

EARLY_TOKENS = 5
RUNAWAY_RATIO = 1.5
ALIKE_RATIO = 0.5  # answers to different prompts that differ less than so many times as much as the reference's
_FEWEST_ANSWERS = 4  # fewer may be alike by chance
_LEAST_DISTANCE = 0.2  # of the reference's own answers; below it they are too much alike for a comparison
LENGTH_RATIO = 1.25  # answers that are together longer or shorter than the reference's by more than this are a finding

_SENTENCES: dict[Flag, str] = {
    "empty": "are empty where the reference answers",
    "immediate-end": f"end after at most {EARLY_TOKENS} tokens where the reference goes on",
    "loop": "end in a loop where the reference's do not",
    "runaway": "run on to the token limit where the reference stopped",
    "invalid-utf8": "hold broken characters (invalid UTF-8) where the reference's do not",
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pair:
    """Both configurations' continuations of one prompt, with their decoded texts."""

    reference: Generation
    candidate: Generation
    reference_text: str
    candidate_text: str


def flags(pair: Pair) -> tuple[Flag, ...]:
    """What is wrong with the candidate's answer and not with the reference's, in a fixed order."""
    return tuple(flag for flag, found in _checks(pair) if found)


def _checks(pair: Pair) -> Iterator[tuple[Flag, bool]]:
    ours, theirs = content(pair.candidate), content(pair.reference)
    stopped = pair.candidate.stop == "eos"
    yield "empty", not ours and bool(theirs)
    yield "immediate-end", stopped and 0 < len(ours) <= EARLY_TOKENS and len(theirs) > 2 * EARLY_TOKENS
    yield "loop", ngram_loop(ours) is not None and ngram_loop(theirs) is None
    yield "runaway", pair.reference.stop == "eos" and not stopped and len(ours) >= RUNAWAY_RATIO * len(theirs)
    yield (
        "invalid-utf8",
        _broken(pair.candidate_text, pair.candidate) and not _broken(pair.reference_text, pair.reference),
    )


def _broken(text: str, generation: Generation) -> bool:
    """Whether the text holds replacement characters; one cut off by the token limit is no fault."""
    return REPLACEMENT in (text if generation.stop == "eos" else text.rstrip(REPLACEMENT))


def findings(pairs: Sequence[Pair], *, what: str = "answers") -> tuple[str, ...]:
    """Plain sentences with counts, none when nothing is wrong. `what` is the noun: "answers", "retrieval answers"."""
    counts = Counter(flag for pair in pairs for flag in flags(pair))
    found = [f"{counts[f]} of {len(pairs)} candidate {what} {text}" for f, text in _SENTENCES.items() if counts[f]]
    if deaf := indifference(pairs, what=what):
        found.append(deaf)
    ratio = _length_ratio(pairs)
    if ratio is not None and not 1.0 / LENGTH_RATIO <= ratio <= LENGTH_RATIO:
        found.append(f"candidate {what} are {ratio:.2f} times as long as the reference's")
    return tuple(found)


def indifference(pairs: Sequence[Pair], *, what: str) -> str | None:
    """How the candidate says much the same whatever it is asked, where the reference does not; None when it listens."""
    if repeated := constant_answers(pairs):
        return f"the candidate gives one and the same text in {repeated} of {len(pairs)} {what}"
    if len(pairs) < _FEWEST_ANSWERS:
        return None
    ours, theirs = ([content(side) for side in sides] for sides in _sides(pairs))
    texts, reference_texts = len(set(ours)), len(set(theirs))
    if 2 * texts <= reference_texts:
        return (
            f"the candidate gives only {texts} different texts in {len(pairs)} {what}, the reference {reference_texts}"
        )
    distance, reference_distance = _distance(ours), _distance(theirs)
    if reference_distance >= _LEAST_DISTANCE and distance < ALIKE_RATIO * reference_distance:
        return (
            f"candidate {what} hardly differ from prompt to prompt: {distance:.0%} of their tokens, "
            f"{reference_distance:.0%} of the reference's"
        )
    return None


def _sides(pairs: Sequence[Pair]) -> tuple[list[Generation], list[Generation]]:
    return [p.candidate for p in pairs], [p.reference for p in pairs]


def _distance(texts: Sequence[Sequence[int]]) -> float:
    """Mean edit distance, as a share of the longer text, between texts half the list apart."""
    half = len(texts) // 2
    found = [edit_distance(a, b) / max(len(a), len(b), 1) for a, b in zip(texts[:half], texts[half:], strict=False)]
    return sum(found) / len(found)


def constant_reference(pairs: Sequence[Pair]) -> str | None:
    """That the reference says one text to most prompts, so that following it proves nothing; None when it does not."""
    theirs = _most_frequent([content(p.reference) for p in pairs])
    if len(pairs) < _FEWEST_ANSWERS or 2 * theirs <= len(pairs):
        return None
    return f"the reference gives one and the same text in {theirs} of {len(pairs)} answers: agreement proves nothing"


def constant_answers(pairs: Sequence[Pair]) -> int:
    """How many of the answers are the candidate's most frequent text, if more than half are and the reference's vary.

    0 otherwise. The empty text counts as one: a silent candidate answers everything alike.
    """
    ours = _most_frequent([content(p.candidate) for p in pairs])
    theirs = _most_frequent([content(p.reference) for p in pairs])
    return ours if len(pairs) > 1 and 2 * ours > len(pairs) >= 2 * theirs else 0


def _most_frequent(texts: Sequence[Sequence[int]]) -> int:
    return max(Counter(map(tuple, texts)).values(), default=0)


def _length_ratio(pairs: Sequence[Pair]) -> float | None:
    """Tokens of all the candidate's answers over those of the reference's; None when either side said nothing."""
    ours = sum(len(content(p.candidate)) for p in pairs)
    theirs = sum(len(content(p.reference)) for p in pairs)
    return ours / theirs if ours and theirs else None
