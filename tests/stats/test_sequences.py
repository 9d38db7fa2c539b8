"""Token sequences: prefix, edit distance, loops."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refract.stats.sequences import Loop, common_prefix, edit_distance, ngram_loop

tokens = st.lists(st.integers(0, 4), max_size=30)
long_tokens = st.lists(st.integers(0, 3), min_size=60, max_size=150)


def textbook_distance(a: Sequence[int], b: Sequence[int]) -> int:
    previous = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        row = [i]
        for j, y in enumerate(b, 1):
            row.append(min(row[-1] + 1, previous[j] + 1, previous[j - 1] + (x != y)))
        previous = row
    return previous[-1]


@given(tokens, tokens)
def test_edit_distance_equals_the_textbook(a: list[int], b: list[int]) -> None:
    assert edit_distance(a, b) == textbook_distance(a, b)


@given(long_tokens, long_tokens)
def test_edit_distance_beyond_one_machine_word(a: list[int], b: list[int]) -> None:
    assert edit_distance(a, b) == textbook_distance(a, b)


@given(tokens, tokens, st.integers(0, 12))
def test_limit_only_caps_the_distance(a: list[int], b: list[int], limit: int) -> None:
    assert edit_distance(a, b, limit=limit) == min(textbook_distance(a, b), limit + 1)


@given(tokens, tokens, tokens)
def test_edit_distance_is_a_metric(a: list[int], b: list[int], c: list[int]) -> None:
    assert edit_distance(a, a) == 0
    assert edit_distance(a, b) == edit_distance(b, a)
    assert edit_distance(a, c) <= edit_distance(a, b) + edit_distance(b, c)
    assert abs(len(a) - len(b)) <= edit_distance(a, b) <= max(len(a), len(b))


def test_edit_distance_of_empty_and_of_disjoint_sequences() -> None:
    assert edit_distance([], []) == 0
    assert edit_distance([], [1, 2, 3]) == 3
    assert edit_distance([1, 2, 3], [4, 5, 6, 7]) == 4
    assert edit_distance((151_643, 7, 9), (7, 9)) == 1


@given(tokens, tokens)
def test_common_prefix_is_the_first_difference(a: list[int], b: list[int]) -> None:
    p = common_prefix(a, b)
    assert a[:p] == b[:p]
    assert p in (len(a), len(b)) or a[p] != b[p]


def test_common_prefix_of_empty_and_equal_sequences() -> None:
    assert common_prefix([], [1]) == 0
    assert common_prefix([1, 2], [1, 2]) == 2
    assert common_prefix([1, 2, 3], [1, 2]) == 2


@pytest.mark.parametrize("period", [1, 2, 5, 8, 32])
def test_a_looping_tail_is_found_with_its_shortest_period(period: int) -> None:
    text, cycle = list(range(1000, 1010)), list(range(period))
    rounds = max(4, -(-24 // period)) + 1
    assert ngram_loop(text + cycle * rounds) == Loop(period=period, repeats=rounds, start=10)


def test_last_round_may_be_cut_short() -> None:
    assert ngram_loop([9, *([1, 2, 3, 4, 5, 6, 7] * 4), 1, 2]) == Loop(period=7, repeats=4, start=1)


@pytest.mark.parametrize(
    "healthy",
    [
        [],
        [1] * 23,
        list(range(128)),
        [1, 2, 3, 4, 5, 6, 7, 8] * 3,
        [1] * 40 + [2],
        list(range(33)) * 5,
    ],
    ids=["empty", "short", "no repeat", "three rounds", "loop left again", "period beyond the limit"],
)
def test_healthy_tails_are_not_loops(healthy: list[int]) -> None:
    assert ngram_loop(healthy) is None


def test_thresholds_can_be_set() -> None:
    assert ngram_loop(list(range(33)) * 5, max_period=33) == Loop(period=33, repeats=5, start=0)
    assert ngram_loop(list(range(10)) * 3, min_repeats=3) == Loop(period=10, repeats=3, start=0)


@given(st.lists(st.integers(0, 2), max_size=80))
def test_what_is_called_a_loop_repeats(sequence: list[int]) -> None:
    loop = ngram_loop(sequence)
    if loop is not None:
        tail = sequence[loop.start :]
        assert tail[: -loop.period] == tail[loop.period :]
        assert len(tail) >= 24
        assert len(tail) // loop.period == loop.repeats >= 4
