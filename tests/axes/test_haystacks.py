"""Haystacks: prompts of exactly the tokens asked for, facts where they belong, disjoint stretches of text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refract.axes.haystacks import Fitted, Haystack, cut_haystacks, fit_prompt, hide
from refract.axes.needles import make_needle

from .support import SmallTokenizer, corpus, prose

TEXT = prose(3000)
FACT = "The lighthouse of Velumo was built with 4711 stones."


def fitted(length: int, position: float = 0.5, text: str = TEXT, facts: tuple[str, ...] = (FACT,)) -> Fitted:
    found = fit_prompt(
        SmallTokenizer(), Haystack(id="h", text=text), facts, "How many?", position=position, length=length
    )
    assert isinstance(found, Fitted)
    return found


@settings(max_examples=60, deadline=None)
@given(length=st.integers(80, 900), position=st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]), seed=st.integers(0, 3))
def test_lengths_are_exact(length: int, position: float, seed: int) -> None:
    assert len(fitted(length, position, prose(3000, seed=seed)).prompt) == length


def test_lengths_are_exact_in_text_of_many_bytes_a_character_or_the_nearest_below() -> None:
    dense = "".join(chr(0x4E00 + (i * 37) % 3000) for i in range(4000))
    for length in (200, 201, 202, 500):
        assert length - 3 <= len(fitted(length, text=dense).prompt) <= length


@pytest.mark.parametrize(("position", "low", "high"), [(0.0, 0, 0), (0.1, 0.05, 0.15), (0.5, 0.45, 0.55), (1.0, 1, 1)])
def test_the_fact_lies_where_it_belongs(position: float, low: float, high: float) -> None:
    tokenizer = SmallTokenizer()
    found = fit_prompt(tokenizer, Haystack(id="h", text=TEXT), (FACT,), "How many?", position=position, length=1500)
    assert isinstance(found, Fitted)
    assert low <= found.depth <= high
    text = tokenizer.decode(found.prompt)
    assert text.count(FACT) == 1
    assert (text.index(FACT) - text.index("\n\n") - 2) / (text.rindex("\n\n") - text.index("\n\n")) == pytest.approx(
        found.depth * (1 - len(FACT) / len(text)), abs=0.03
    )


def test_facts_stand_between_sentences_and_are_spread() -> None:
    facts = ("One is here.", "Two is here.", "Three is here.", "Four is here.")
    text = hide(TEXT, facts, (0.1, 0.35, 0.6, 0.85))
    ends = [text[: text.index(f)].rstrip(" \n")[-1] for f in facts]
    assert ends == ["."] * 4
    places = [text.index(f) / len(text) for f in facts]
    assert places == pytest.approx([0.1, 0.35, 0.6, 0.85], abs=0.03)
    assert all(f" {f}" in text or f"\n{f}" in text for f in facts)


def test_hide_keeps_the_text() -> None:
    for text in ("", "word", "a b", TEXT[:777], "无标点的长文本" * 50):
        for place in (0.0, 0.3, 1.0):
            kept = hide(text, (FACT,), (place,)).replace(FACT, "")
            assert "".join(kept.split()) == "".join(text.split())


def test_too_little_text_and_too_long_a_question_are_told_apart() -> None:
    short = fit_prompt(SmallTokenizer(), Haystack(id="h", text="tiny"), (FACT,), "q", position=0.5, length=500)
    assert isinstance(short, int)
    assert short < 500
    long = fit_prompt(SmallTokenizer(), Haystack(id="h", text=TEXT), (FACT,), "q" * 900, position=0.5, length=100)
    assert isinstance(long, int)
    assert long > 100


def test_haystacks_are_disjoint_and_long_enough() -> None:
    made = corpus(a=prose(3000, seed=1), b=prose(3000, seed=2))
    haystacks = cut_haystacks(made, SmallTokenizer(), longest=500, count=8)
    assert len(haystacks) == 8 == len({h.id for h in haystacks})
    places = [made.text.index(h.text[:200]) for h in haystacks]
    assert places == sorted(places)
    assert all(b >= a + len(h.text) for a, b, h in zip(places, places[1:], haystacks, strict=False))
    assert all(len(fitted(500, text=h.text).prompt) == 500 for h in haystacks)
    assert len(cut_haystacks(made, SmallTokenizer(), longest=3000, count=8)) < 8
    assert len(cut_haystacks(corpus(a="short"), SmallTokenizer(), longest=3000, count=8)) == 1


def test_every_family_fits_exactly() -> None:
    for trial, family in enumerate(("literal", "multi-key", "non-literal", "two-hop")):
        needle = make_needle(family, TEXT, seed=0, trial=trial)
        assert needle is not None
        for position in (0.0, 0.5, 1.0):
            assert len(fitted(400, position, facts=needle.facts).prompt) == 400
