"""Kullback–Leibler divergence of next-token distributions, exact and as a lower bound from K listed tokens."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from refract.work import Distributions

F64 = npt.NDArray[np.float64]
Real = npt.NDArray[np.float32] | npt.NDArray[np.float64]


def log_softmax(logits: npt.ArrayLike) -> F64:
    """Log-probabilities (…, V) in nats, float64: x − max − log Σ exp(x − max).

    −inf logits are tokens of probability 0. A row that holds NaN or +inf, or nothing but −inf, becomes all NaN.
    """
    values = np.asarray(logits, dtype=np.float64)
    top = np.max(values, axis=-1, keepdims=True)
    with np.errstate(invalid="ignore"):
        shifted = values - top  # inf − inf is NaN, and makes the whole row NaN below
        out: F64 = shifted - np.log(np.sum(np.exp(shifted), axis=-1, keepdims=True))
    return out


def log1mexp(x: npt.ArrayLike) -> F64:
    """log(1 − exp(x)) for x ≤ 0, elementwise and without cancellation: −inf at 0 (Mächler 2012, Rmpfr vignette).

    Values above 0, which only rounding makes of log-probabilities that sum to 1, count as 0.
    """
    values = np.minimum(np.asarray(x, dtype=np.float64), 0.0)
    with np.errstate(divide="ignore"):
        near = np.log(-np.expm1(values))
        return np.where(values > -np.log(2.0), near, np.log1p(-np.exp(values)))


def log_tail(logprobs: npt.ArrayLike) -> F64:
    """Log of the mass (N,) that listed log-probabilities (N, K) leave to the rest of the vocabulary; −inf for none.

    Accurate to about 1e-7 of mass for float32 input: a tail known from the full vocabulary is better and preferred.
    """
    values = np.asarray(logprobs, dtype=np.float64)
    if values.shape[-1] == 0:
        return np.zeros(values.shape[:-1])
    return log1mexp(_log_sum_exp(values))


def _log_sum_exp(values: F64) -> F64:
    top = np.max(values, axis=-1, keepdims=True)
    safe = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        out: F64 = np.log(np.sum(np.exp(values - safe), axis=-1)) + safe[..., 0]
    return out


def kl_full(reference_logits: npt.ArrayLike, candidate_logits: npt.ArrayLike) -> F64:
    """KL(reference ‖ candidate) (N,) in nats over the full vocabulary, from logits (N, V): Σ p (log p − log q).

    Exactly 0 for identical logits. Not clipped: rounding may leave a result a little below 0 (float32 logits: −1e-9),
    and anything further below is a fault worth seeing. Tokens of reference probability 0 contribute 0; a token possible
    under the reference and impossible under the candidate gives +inf; NaN rows stay NaN. Works on float64 copies of
    both (N, V) arrays: pass long texts in slices.
    """
    return kl_terms(log_softmax(reference_logits), log_softmax(candidate_logits))


def kl_terms(log_p: F64, log_q: F64) -> F64:
    """Σ p (log p − log q) over the last axis; 0 · log 0 is 0, NaN anywhere in a row is NaN."""
    p = np.exp(log_p)
    with np.errstate(invalid="ignore"):
        terms = p * (log_p - log_q)
    terms = np.where((p == 0.0) & ~np.isnan(log_q), 0.0, terms)
    out: F64 = np.sum(terms, axis=-1)
    return out


def kl_topk(reference: Distributions, candidate_logprobs: npt.ArrayLike, candidate_tail: npt.ArrayLike) -> F64:
    """A lower bound (N,) of KL(reference ‖ candidate) in nats: K listed tokens and one bin for the rest.

    `candidate_logprobs` (N, K) belong to `reference.ids`, `candidate_tail` (N,) is the log of the candidate's mass
    outside those same ids. Merging the rest into one bin can only lose divergence (log-sum inequality; Cover & Thomas
    2006, Thm 2.7.1): the bound grows with K and is exact when K is the vocabulary. A reference without tail contributes
    nothing for it.

    Raises: ValueError when shapes disagree.
    """
    listed = np.asarray(candidate_logprobs, dtype=np.float64)
    tail = np.asarray(candidate_tail, dtype=np.float64)
    if listed.shape != reference.logprobs.shape or tail.shape != reference.tail.shape:
        raise ValueError(f"{reference.logprobs.shape} log-probabilities expected, found {listed.shape}, {tail.shape}")
    log_p = np.concatenate([reference.logprobs.astype(np.float64), reference.tail[:, None].astype(np.float64)], axis=1)
    return kl_terms(log_p, np.concatenate([listed, tail[:, None]], axis=1))
