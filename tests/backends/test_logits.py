"""Divergence and listings read off rows of logits."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refract.backends._logits import compare_logits, list_top, token_logprobs
from refract.stats.divergence import kl_full


def rows(seed: int, count: int = 6, width: int = 50, spread: float = 3.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal((count, width)) * spread).astype(np.float32)


def test_identical_rows_give_exactly_zero() -> None:
    logits = rows(0)
    found = compare_logits(logits, logits.copy(), [1] * 6)
    assert not found.kl.any()
    assert not found.token_nll_delta.any()
    assert not found.token_p_delta.any()
    assert found.same_top.all()
    assert found.reference_finite.all()


def test_a_hand_computed_case() -> None:
    reference = np.log(np.array([[0.5, 0.25, 0.25]], np.float32))
    candidate = np.log(np.array([[0.25, 0.25, 0.5]], np.float32)) + 7  # a shift of all logits means nothing
    found = compare_logits(reference, candidate, [0])
    assert found.kl[0] == pytest.approx(0.5 * math.log(2) - 0.25 * math.log(2), abs=1e-6)
    assert not found.same_top[0]
    assert found.reference_margin[0] == pytest.approx(0.25, abs=1e-6)
    assert found.token_nll_delta[0] == pytest.approx(math.log(2), abs=1e-6)
    assert found.token_p_delta[0] == pytest.approx(-0.25, abs=1e-6)
    assert found.reference_nll[0] == pytest.approx(math.log(2), abs=1e-6)


def test_the_worst_case_is_large_and_finite() -> None:
    reference = np.array([[50.0, 0.0]], np.float32)
    found = compare_logits(reference, reference[:, ::-1].copy(), [0])
    assert found.kl[0] == pytest.approx(50.0, rel=1e-5)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), noise=st.floats(1e-3, 4.0))
def test_it_equals_float64_and_is_never_negative(seed: int, noise: float) -> None:
    reference = rows(seed)
    candidate = reference + np.float32(noise) * rows(seed + 1, spread=1.0)
    found = compare_logits(reference, candidate, [3] * 6)
    expected = kl_full(reference.astype(np.float64), candidate.astype(np.float64))
    assert found.kl == pytest.approx(expected, abs=1e-6, rel=1e-5)
    assert found.kl.min() > -1e-6


def test_more_noise_means_more_divergence() -> None:
    reference, noise = rows(1, count=200), rows(2, count=200, spread=1.0)
    means = [float(compare_logits(reference, reference + s * noise, [0] * 200).kl.mean()) for s in (0.05, 0.2, 0.8)]
    assert means == sorted(means)
    assert means[0] > 0


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_stays_visible(bad: float) -> None:
    reference, candidate = rows(0), rows(0)
    candidate[2, 7] = bad
    found = compare_logits(reference, candidate, [1] * 6)
    assert not np.isfinite(found.kl[2])
    assert np.isfinite(np.delete(found.kl, 2)).all()
    assert found.reference_finite.all()
    assert not compare_logits(candidate, reference, [1] * 6).reference_finite[2]


@pytest.mark.parametrize("count", [1, 2, 5, 20, 50, 80])
def test_the_list_is_sorted_and_its_tail_is_the_rest(count: int) -> None:
    logits = rows(3)
    listed = list_top(logits, count)
    assert listed.ids.shape == (6, min(count, 50))
    p = np.exp(logits.astype(np.float64))
    p /= p.sum(axis=1, keepdims=True)
    expected = np.sort(p, axis=1)[:, ::-1][:, :count]
    assert np.exp(listed.logprobs) == pytest.approx(expected, rel=1e-5)
    assert np.exp(listed.tail) == pytest.approx(1 - expected.sum(axis=1), abs=1e-6)


def test_ties_go_to_the_lower_id() -> None:
    logits = np.zeros((1, 40), np.float32)
    assert list_top(logits, 3).ids[0].tolist() == [0, 1, 2]


def test_a_tokens_log_probability() -> None:
    logits = rows(5)
    expected = logits - np.log(np.exp(logits.astype(np.float64)).sum(axis=1, keepdims=True))
    assert token_logprobs(logits, [4] * 6) == pytest.approx(expected[:, 4], abs=1e-5)
