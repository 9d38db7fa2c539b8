"""Windows: llama-perplexity's on one section, spread evenly over several, exact in length, and cheap to cut."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refract.axes.windows import cut_windows, distinct
from refract.errors import CorpusError

from .support import BOS, SmallTokenizer, corpus, prose


def test_one_section_gives_consecutive_windows_like_llama_perplexity() -> None:
    tokenizer = SmallTokenizer()
    text = prose(2000)
    whole = tokenizer.encode(text, add_special=True)
    windows = cut_windows(corpus(wiki=text), tokenizer, count=5, size=64)
    assert [w.tokens for w in windows] == [(BOS, *whole[i * 64 + 1 : i * 64 + 64]) for i in range(5)]
    assert {w.category for w in windows} == {"wiki"}


def test_without_begin_token_nothing_is_replaced() -> None:
    tokenizer = SmallTokenizer(bos=False)
    text = prose(2000)
    windows = cut_windows(corpus(wiki=text), tokenizer, count=5, size=64)
    assert sum((w.tokens for w in windows), ()) == tokenizer.encode(text)[: 5 * 64]


@pytest.mark.parametrize("bos", [True, False])
def test_sections_take_turns_and_windows_are_disjoint_and_whole_words(bos: bool) -> None:
    tokenizer = SmallTokenizer(bos=bos)
    texts = {name: prose(3000, seed=i) for i, name in enumerate(("a", "b", "c"))}
    windows = cut_windows(corpus(**texts), tokenizer, count=8, size=64)
    assert [w.category for w in windows] == list("abcabcab")
    for window in windows:
        assert len(window.tokens) == 64
        assert (window.tokens[0] == BOS) is bos
        body = tokenizer.decode(window.tokens[1:] if bos else window.tokens)
        at = texts[window.category].index(body)
        assert body[0] == " "
        assert texts[window.category].rfind("\n", 0, at) >= at - 60
    first = [texts["a"].index(tokenizer.decode(w.tokens[4:])) for w in windows if w.category == "a"]
    gaps = [b - a for a, b in pairwise(first)]
    assert max(gaps) - min(gaps) < 500


@pytest.mark.parametrize("bos", [True, False])
def test_windows_read_as_themselves_alone_and_in_any_order(bos: bool) -> None:
    tokenizer = SmallTokenizer(bos=bos)
    made = corpus(a=prose(3000), b=prose(3000, seed=1), c="日本語の文章と words 混ぜて、書く。\n" * 400)
    bodies = [w.tokens[bos:] for w in cut_windows(made, tokenizer, count=9, size=64)]
    for order in (bodies, bodies[::-1], bodies[1::2] + bodies[::2], bodies[4:5]):
        joined = sum(order, ())
        assert tokenizer.encode(tokenizer.decode(joined)) == joined


def test_text_that_can_be_cut_nowhere_gives_windows_all_the_same() -> None:
    class Merging(SmallTokenizer):
        def encode(self, text: str, *, add_special: bool = False) -> tuple[int, ...]:
            return tuple(300 + len(text) - i for i in range(len(text)))

        def decode(self, ids: Sequence[int]) -> str:
            return "x" * (len(ids) + 1)

    made = corpus(a="x" * 4000, b="y" * 4000)
    assert [len(w.tokens) for w in cut_windows(made, Merging(bos=False), count=4, size=64)] == [64] * 4


def test_only_as_much_is_tokenised_as_needed() -> None:
    tokenizer = SmallTokenizer()
    text = prose(4000) * 10
    cut_windows(corpus(a=text, b=text), tokenizer, count=4, size=64)
    assert tokenizer.encoded_chars < 8000 < len(text)


def test_text_of_few_characters_a_token_and_of_many() -> None:
    tokenizer = SmallTokenizer()
    dense = "".join(chr(0x4E00 + i % 5000) for i in range(3000))
    assert [len(w.tokens) for w in cut_windows(corpus(a=dense, b=dense), tokenizer, count=4, size=100)] == [100] * 4

    class Sparse(SmallTokenizer):
        def encode(self, text: str, *, add_special: bool = False) -> tuple[int, ...]:
            return tuple(range(300, 300 + len(text) // 20))

        def decode(self, ids: Sequence[int]) -> str:
            return "x" * 20 * len(ids)

    assert [len(w.tokens) for w in cut_windows(corpus(a=dense, b=dense), Sparse(), count=4, size=50)] == [50] * 4


def test_a_section_with_few_tokens_in_places_is_cut_from_its_tokens() -> None:
    text = "x" * 4000 + "y" * 4000

    class Uneven(SmallTokenizer):
        def encode(self, text: str, *, add_special: bool = False) -> tuple[int, ...]:
            return tuple(300 + i for i, c in enumerate(text) if c == "x")

        def decode(self, ids: Sequence[int]) -> str:
            return "x" * len(ids)

    windows = cut_windows(corpus(a=text, b="x" * 4000), Uneven(bos=False), count=8, size=500)
    assert [len(w.tokens) for w in windows] == [500] * 8
    own = [w.tokens for w in windows if w.category == "a"]
    assert len(set(sum(own, ()))) == 2000


@pytest.mark.parametrize("text", ["ten bytes.", "x", prose(50)])
def test_too_short_says_how_much_is_needed(text: str) -> None:
    with pytest.raises(CorpusError, match="2048 tokens needed") as caught:
        cut_windows(corpus(a=text), SmallTokenizer(), count=4, size=512)
    assert "--chunks" in str(caught.value.hint)
    with pytest.raises(CorpusError, match="test-corpus/b is too short: 1024 tokens needed"):
        cut_windows(corpus(a=prose(4000), b=text), SmallTokenizer(), count=4, size=512)


def test_copies_are_left_out() -> None:
    windows = cut_windows(corpus(a="abcd" * 4000), SmallTokenizer(), count=4, size=64)
    kept, copies = distinct(windows)
    assert (len(kept), copies) == (1, 3)


@settings(deadline=None)
@given(count=st.integers(1, 9), size=st.integers(8, 80), sections=st.integers(1, 4), bos=st.booleans())
def test_always_the_count_and_size_asked_for(count: int, size: int, sections: int, bos: bool) -> None:
    made = corpus(**{f"s{i}": prose(1500, seed=i) for i in range(sections)})
    windows = cut_windows(made, SmallTokenizer(bos=bos), count=count, size=size)
    assert [len(w.tokens) for w in windows] == [size] * count
    assert distinct(windows)[1] == 0
    assert cut_windows(made, SmallTokenizer(bos=bos), count=count, size=size) == windows
