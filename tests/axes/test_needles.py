"""Needles: distinct, neutral, absent from the haystack; a hit is the whole answer after the thinking part."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refract.axes.needles import FAMILIES, Needle, judge, make_needle, opens_thinking

LITERAL = Needle(family="literal", facts=("f",), question="q", answer="4711", rivals=("2300", "9000"), names=("4711",))
NAME = Needle(family="non-literal", facts=("f",), question="q", answer="Velumo", names=("Velumo",))


def made(family: str, trial: int, haystack: str = "", seed: int = 0) -> Needle:
    needle = make_needle(family, haystack, seed=seed, trial=trial)
    assert needle is not None
    return needle


@pytest.mark.parametrize("family", FAMILIES)
def test_needles_are_distinct_and_the_same_every_time(family: str) -> None:
    needles = [made(family, trial) for trial in range(200)]
    assert len({n.facts for n in needles}) == 200
    assert needles == [made(family, trial) for trial in range(200)]
    assert made(family, 0) != made(family, 0, seed=1)


@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_sounds_like_a_secret_and_the_answer_is_not_in_the_question(family: str) -> None:
    for trial in range(50):
        needle = made(family, trial)
        text = " ".join((*needle.facts, needle.question))
        assert not re.search(r"secret|password|code|key|magic|hidden|confidential", text, re.IGNORECASE)
        assert needle.answer not in needle.question
        assert needle.answer in " ".join(needle.facts)
        assert needle.answer not in needle.rivals


@pytest.mark.parametrize("family", FAMILIES)
def test_a_needle_in_the_haystack_already_is_replaced(family: str) -> None:
    first = made(family, 3)
    for name in first.names:
        other = made(family, 3, haystack=f"There was {name.upper()} already.")
        assert name not in other.names
    every = " ".join(map(str, range(2200, 10000))) + " " + "".join(f"{c}{v}" for c in "bdfgklmnprstvz" for v in "aeiou")
    if family != "non-literal":
        assert make_needle(family, every, seed=0, trial=0) is None


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("4711", "hit"),
        ("It was built with 4,711 stones.", "hit"),
        ("**4711**.", "hit"),
        ("14711", "miss"),
        ("4711a", "miss"),
        ("47 11", "miss"),
        ("471", "miss"),
        ("", "miss"),
        ("I do not know.", "miss"),
        ("2300", "miss"),
        ("2300 or 4711", "miss"),
        ("4711, not 2300", "hit"),
        ("<think>4711?</think>I do not know", "miss"),
        ("<think>hm</think> 4711", "hit"),
        ("hm, 4711</think>2300", "miss"),
        ("hm</think>\n\n4711", "hit"),
        ("<think>is it 4711", "thinking"),
        ("<think>a</think><think>4711", "thinking"),
        ("<|channel|>analysis<|message|>4711<|channel|>final<|message|>4711", "hit"),
        ("<|channel|>analysis<|message|>4711", "thinking"),
    ],
)
def test_hits_are_whole_answers_after_the_thinking_part(text: str, outcome: str) -> None:
    assert judge(text, LITERAL) == outcome


def test_a_thinking_part_that_the_prompt_opened() -> None:
    assert opens_thinking("<assistant><think>\n")
    assert not opens_thinking("<think>\n\n</think>\n\n")
    assert not opens_thinking("<assistant>")
    assert judge("4711", LITERAL, thinking=True) == "thinking"
    assert judge("so 2300</think>4711", LITERAL, thinking=True) == "hit"


def test_names_match_in_any_case_and_with_a_genitive() -> None:
    assert judge("VELUMO", NAME) == judge("That is Velumo's garden", NAME) == "hit"
    assert judge("Velumos", NAME) == judge("Vel umo", NAME) == "miss"


@given(before=st.text(max_size=30), after=st.text(max_size=30))
def test_digits_or_letters_next_to_the_answer_never_hit(before: str, after: str) -> None:
    assert judge(f"{before}x4711{after}", LITERAL) != "hit" or "4711" in before + after
