"""Lists of probable tokens: aligned by id, and a divergence that is never above the exact one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refract.backends._logits import compare_logits, list_top, token_logprobs
from refract.backends.llamacpp.listed import Listing, compare_listings, joined, narrowed, pack, read_listing, unpack
from refract.errors import EngineError
from refract.work import Distributions

logits = st.lists(st.floats(-8.0, 8.0, width=32), min_size=24, max_size=24)


def entry(token: int, *pairs: tuple[int, float | None]) -> dict[str, object]:
    top = [{"id": number, "logprob": value} for number, value in pairs]
    own = next((value for number, value in pairs if number == token), -9.0)
    return {"id": token, "logprob": own, "top_logprobs": top}


def listing(rows: np.ndarray, tokens: tuple[int, ...], count: int) -> Listing:
    return Listing(tokens=tokens, logprobs=token_logprobs(rows, tokens), listed=list_top(rows, count))


def test_lists_are_read_by_id() -> None:
    found = read_listing([entry(7, (7, -0.1), (3, -3.0)), entry(5, (3, -0.5), (5, -1.0))], (7, 5), 2)
    assert found is not None
    assert found.listed.ids.tolist() == [[7, 3], [3, 5]]
    assert found.logprobs.tolist() == pytest.approx([-0.1, -1.0])
    left = 1.0 - np.exp(-0.1) - np.exp(-3.0)
    assert np.exp(found.listed.tail[0]) == pytest.approx(left, abs=1e-6)


def test_entries_that_were_left_out_make_no_list() -> None:
    assert read_listing([entry(7, (7, -0.1))], (7, 5), 1) is None
    assert read_listing([entry(5, (5, -0.1))], (7,), 1) is None


def test_what_is_not_finite_stays_so() -> None:
    found = read_listing([entry(7, (7, None), (3, None))], (7,), 2)
    assert found is not None
    divergence = compare_listings(found, found)
    assert np.isnan(divergence.kl).all()
    assert not divergence.reference_finite.any()


@pytest.mark.parametrize("broken", [{"id": 7}, entry(7, (7, -0.1)), {"id": 7, "logprob": "x", "top_logprobs": []}])
def test_lists_shorter_than_asked_or_of_another_shape_are_errors(broken: dict[str, object]) -> None:
    with pytest.raises(EngineError, match="not as expected"):
        read_listing([broken], (7,), 2)


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


def test_lists_without_a_common_token_leave_only_the_rest() -> None:
    left = read_listing([entry(0, (0, -0.01))], (0,), 1)
    right = read_listing([entry(0, (1, -0.01))], (0,), 1)
    assert left is not None
    assert right is not None
    found = compare_listings(left, right)
    assert found.kl[0] == pytest.approx(0.0, abs=1e-6)
    assert not found.same_top[0]


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
