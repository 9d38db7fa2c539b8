"""Lists of probable tokens: aligned by id, and a divergence that is never above the exact one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refract.backends import _listed
from refract.backends._listed import Listing, compare_listings, compare_windows, joined, narrowed, pack, stretch, unpack
from refract.backends._logits import compare_logits, list_top, token_logprobs
from refract.errors import EngineError
from refract.work import Distributions, Window

logits = st.lists(st.floats(-8.0, 8.0, width=32), min_size=24, max_size=24)


def listing(rows: np.ndarray, tokens: tuple[int, ...], count: int) -> Listing:
    return Listing(tokens=tokens, logprobs=token_logprobs(rows, tokens), listed=list_top(rows, count))


def test_equal_lists_diverge_by_exactly_nothing() -> None:
    rows = np.random.default_rng(0).normal(0, 3, (5, 24)).astype(np.float32)
    own = listing(rows, (1, 2, 3, 4, 5), 8)
    found = compare_listings(own, own, window=3)
    assert found.kl.tolist() == [0.0] * 5
    assert found.same_top.all()
    assert found.window.tolist() == [3] * 5
    assert found.estimator == "kl-top8"


def test_two_tokens_by_hand() -> None:
    def side(p: float) -> Listing:
        values = np.log([[p, 1.0 - p]]).astype(np.float32)
        listed = Distributions(ids=np.array([[0, 1]], np.int32), logprobs=values, tail=np.array([-np.inf], np.float32))
        return Listing(tokens=(0,), logprobs=values[:, 0], listed=listed)

    found = compare_listings(side(0.75), side(0.5))
    assert found.kl[0] == pytest.approx(0.75 * np.log(1.5) + 0.25 * np.log(0.5), abs=1e-6)
    assert found.reference_margin[0] == pytest.approx(0.5)
    assert found.token_nll_delta[0] == pytest.approx(np.log(1.5))
    assert found.token_p_delta[0] == pytest.approx(-0.25)


@settings(max_examples=60, deadline=None)
@given(a=logits, b=logits, count=st.integers(1, 24))
def test_the_bound_is_never_above_the_exact_divergence_and_meets_it_with_the_whole_vocabulary(
    a: list[float], b: list[float], count: int
) -> None:
    left, right = np.array([a], np.float32), np.array([b], np.float32)
    exact = float(compare_logits(left, right, (0,)).kl[0])
    bound = float(compare_listings(listing(left, (0,), count), listing(right, (0,), count)).kl[0])
    assert bound <= exact + 1e-5
    if count == 24:
        assert bound == pytest.approx(exact, abs=1e-5)


def test_listings_join_narrow_and_survive_the_disk() -> None:
    rows = np.random.default_rng(1).normal(0, 3, (4, 24)).astype(np.float32)
    whole = listing(rows, (1, 2, 3, 4), 8)
    halves = [listing(rows[:2], (1, 2), 8), listing(rows[2:], (3, 4), 8)]
    assert joined(halves).tokens == whole.tokens
    assert np.array_equal(joined(halves).listed.logprobs, whole.listed.logprobs)
    again = unpack(pack(whole))
    assert again.tokens == whole.tokens
    assert np.array_equal(again.listed.tail, whole.listed.tail)
    few = narrowed(whole, 2)
    assert few.ids.shape == (4, 2)
    assert np.allclose(np.exp(few.logprobs).sum(axis=1) + np.exp(few.tail), 1.0, atol=1e-6)
    with pytest.raises(EngineError, match="cannot be read"):
        unpack(b"nonsense")


def test_lists_without_a_common_token_leave_only_the_rest() -> None:
    left, right = (_listed.listing((0,), [-0.01], [[token]], [[-0.01]]) for token in (0, 1))
    found = compare_listings(left, right)
    assert found.kl[0] == pytest.approx(0.0, abs=1e-6)
    assert not found.same_top[0]


def test_swapped_ranks_at_the_end_of_the_list_cost_next_to_nothing() -> None:
    rows = np.sort(np.random.default_rng(2).normal(0, 3, (1, 200)).astype(np.float32))[:, ::-1].copy()
    rows[0, 64] = rows[0, 63] - 1e-4
    other = rows.copy()
    other[0, [63, 64]] = other[0, [64, 63]]
    exact = float(compare_logits(rows, other, (0,)).kl[0])
    found = float(compare_listings(listing(rows, (0,), 64), listing(other, (0,), 64)).kl[0])
    assert 0.0 <= found <= exact + 1e-9


def test_mass_moved_outside_the_list_is_seen_in_the_rest() -> None:
    rows = np.zeros((1, 200), np.float32)
    rows[0, :8] = 6.0
    other = rows.copy()
    other[0, 100:] += 3.0
    exact = float(compare_logits(rows, other, (0,)).kl[0])
    found = float(compare_listings(listing(rows, (0,), 8), listing(other, (0,), 8)).kl[0])
    assert 0.3 * exact < found <= exact + 1e-6


def test_windows_are_compared_one_by_one_under_their_number() -> None:
    rows = np.random.default_rng(3).normal(0, 3, (5, 24)).astype(np.float32)
    windows = (Window(tokens=(9, 1, 2), start=1), Window(tokens=(9, 9, 3, 4, 5), start=2))
    reference = listing(rows, (1, 2, 3, 4, 5), 8)
    parts = [stretch(reference, 0, 2), listing(rows[2:] + rows[1], (3, 4, 5), 8)]
    found = compare_windows(reference, windows, parts)
    assert found.window.tolist() == [0, 0, 1, 1, 1]
    assert found.kl[:2].tolist() == [0.0, 0.0]
    assert (found.kl[2:] > 0).all()
    with pytest.raises(EngineError, match="another window"):
        compare_windows(reference, windows[::-1], parts)


def test_a_listing_has_a_list_at_every_token() -> None:
    with pytest.raises(ValueError, match="2 tokens"):
        _listed.listing((1, 2), [-0.1], [[1]], [[-0.1]])
