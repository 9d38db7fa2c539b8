"""KL divergence: exactness, the bound from K listed tokens, and what is not finite."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import special

from refract.stats.divergence import kl_full, kl_topk, log1mexp, log_softmax, log_tail
from refract.work import Distributions

Array = npt.NDArray[np.float64]
logit_pairs = hnp.arrays(np.float64, (2, 3, 12), elements=st.floats(-30, 30, width=32))


def top_k(reference: Array, candidate: Array, k: int) -> tuple[Distributions, Array, Array]:
    """Both sides' log-probabilities cut to the reference's K most probable tokens, tails from the whole vocabulary."""
    order = np.argsort(-reference, axis=1, kind="stable")
    ids, rest = order[:, :k], order[:, k:]

    def tail(log_probs: Array) -> Array:
        if rest.shape[1] == 0:
            return np.full(len(log_probs), -np.inf)
        return np.asarray(special.logsumexp(np.take_along_axis(log_probs, rest, 1), axis=1))

    listed = Distributions(
        ids=ids.astype(np.int32),
        logprobs=np.take_along_axis(reference, ids, 1),  # type: ignore[arg-type]  # float64 keeps the bound exact here
        tail=tail(reference),  # type: ignore[arg-type]
    )
    return listed, np.take_along_axis(candidate, ids, 1), tail(candidate)


def test_log_softmax_matches_scipy() -> None:
    x = np.random.default_rng(0).normal(0, 10, (5, 100)).astype(np.float32)
    np.testing.assert_allclose(log_softmax(x), special.log_softmax(x.astype(np.float64), axis=-1), rtol=1e-12)


def test_log_softmax_of_extreme_logits() -> None:
    np.testing.assert_allclose(log_softmax([[1e4, 0.0], [-1e4, -1e4]]), [[0.0, -1e4], [math.log(0.5)] * 2])
    assert np.isnan(log_softmax([[1.0, np.nan], [np.inf, 0.0], [-np.inf, -np.inf]])).all()
    np.testing.assert_array_equal(log_softmax([[-np.inf, 0.0]]), [[-np.inf, 0.0]])


def test_kl_by_hand() -> None:
    p, q = np.array([[0.5, 0.25, 0.25]]), np.array([[0.25, 0.5, 0.25]])
    assert kl_full(np.log(p), np.log(q))[0] == pytest.approx(0.25 * math.log(2.0))


@given(logit_pairs)
def test_identical_logits_give_exactly_zero(pair: Array) -> None:
    np.testing.assert_array_equal(kl_full(pair[0], pair[0]), 0.0)


@given(logit_pairs)
def test_kl_matches_scipy_and_is_not_negative(pair: Array) -> None:
    p, q = special.softmax(pair, axis=-1)
    found = kl_full(*pair)
    np.testing.assert_allclose(found, special.rel_entr(p, q).sum(-1), rtol=1e-9, atol=1e-12)
    assert (found > -1e-12).all()


@given(logit_pairs, st.floats(-100, 100))
def test_a_constant_added_to_the_logits_changes_nothing(pair: Array, shift: float) -> None:
    np.testing.assert_allclose(kl_full(pair[0], pair[1] + shift), kl_full(*pair), atol=1e-11)


def test_kl_grows_with_the_distance() -> None:
    rng = np.random.default_rng(1)
    x, noise = rng.normal(0, 3, (4, 50)), rng.normal(size=(4, 50))
    steps = np.array([kl_full(x, x + s * noise) for s in (0.0, 0.1, 0.5, 2.0)])
    assert (np.diff(steps, axis=0) > 0).all()


def test_float32_logits_stay_within_rounding_of_zero() -> None:
    x = np.random.default_rng(2).normal(0, 5, (20, 5000)).astype(np.float32)
    assert (kl_full(x, x + np.float32(1e-6)) > -1e-9).all()


def test_impossible_and_not_finite_tokens() -> None:
    inf = np.inf
    assert kl_full([[0.0, -inf]], [[0.0, 0.0]])[0] == pytest.approx(math.log(2.0))
    assert kl_full([[0.0, 0.0]], [[0.0, -inf]])[0] == inf
    assert kl_full([[0.0, -inf]], [[0.0, -inf]])[0] == 0.0
    assert np.isnan(kl_full([[0.0, -inf]], [[0.0, np.nan]])[0])
    assert np.isnan(kl_full([[0.0, np.nan]], [[0.0, 0.0]])[0])


@settings(max_examples=60)
@given(logit_pairs)
def test_k_listed_tokens_bound_the_kl_from_below_and_grow_to_it(pair: Array) -> None:
    reference, candidate = log_softmax(pair[0]), log_softmax(pair[1])
    bounds = np.array([kl_topk(*top_k(reference, candidate, k)) for k in range(1, 13)])
    assert (np.diff(bounds, axis=0) >= -1e-9).all()
    assert (bounds >= -1e-9).all()
    np.testing.assert_allclose(bounds[-1], kl_full(*pair), rtol=1e-9, atol=1e-9)


def test_a_swap_beyond_k_is_invisible_to_the_bound_but_not_to_the_exact_kl() -> None:
    p, q = np.log([[0.9, 0.09, 0.01]]), np.log([[0.9, 0.01, 0.09]])
    assert kl_topk(*top_k(p, q, 1))[0] == pytest.approx(0.0, abs=1e-12)
    assert kl_full(p, q)[0] > 0.1


def test_bound_of_float32_lists_with_an_empty_tail() -> None:
    listed = Distributions(
        ids=np.array([[3, 1]], np.int32),
        logprobs=np.log(np.array([[0.75, 0.25]], np.float32)),
        tail=np.array([-np.inf], np.float32),
    )
    assert kl_topk(listed, listed.logprobs, listed.tail)[0] == 0.0
    assert kl_topk(listed, np.log([[0.7, 0.25]]), np.log([0.05]))[0] == pytest.approx(
        0.75 * math.log(75 / 70), rel=1e-6
    )


def test_shapes_that_disagree_are_refused() -> None:
    listed = Distributions(
        ids=np.zeros((2, 3), np.int32), logprobs=np.zeros((2, 3), np.float32), tail=np.zeros(2, np.float32)
    )
    with pytest.raises(ValueError, match="log-probabilities expected"):
        kl_topk(listed, np.zeros((2, 2)), np.zeros(2))


@given(st.floats(-700, -1e-300))
def test_log1mexp_loses_no_digits(x: float) -> None:
    expected = math.log(-math.expm1(x)) if x > -math.log(2) else math.log1p(-math.exp(x))
    assert float(log1mexp(x)) == pytest.approx(expected, rel=1e-14, abs=1e-320)


def test_log1mexp_at_its_ends() -> None:
    np.testing.assert_array_equal(log1mexp([0.0, 1e-9, -np.inf]), [-np.inf, -np.inf, 0.0])
    assert float(log1mexp(-1e-12)) == pytest.approx(math.log(1e-12), rel=1e-9)


def test_log_tail_is_the_mass_left_over() -> None:
    np.testing.assert_allclose(log_tail(np.log([[0.5, 0.3], [0.2, 0.1]])), np.log([0.2, 0.7]))
    np.testing.assert_array_equal(log_tail(np.empty((2, 0))), [0.0, 0.0])
    np.testing.assert_array_equal(log_tail([[0.0, -np.inf], [-np.inf, -np.inf]]), [-np.inf, 0.0])
