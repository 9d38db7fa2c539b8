"""What is read off full-vocabulary logits, in numpy: exact divergence of two configurations, and top-K lists.

numpy's float32 loops are several times faster than MLX's on a CPU, and the same arithmetic serves every engine that
hands out whole rows of logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import numpy.typing as npt

from refract.work import Distributions, Divergence

Array = npt.NDArray[Any]
_COLUMNS = tuple(field.name for field in fields(Divergence) if field.name != "estimator")
_FEW = 8  # up to so many, repeated argmax beats a partition


def _normaliser(logits: Array) -> tuple[Array, Array]:
    """(exp(logits − max), log Σ exp(logits)): the second (N,) in float64."""
    peak = logits.max(axis=1, keepdims=True)
    weights = np.exp(logits - peak)
    total = weights.sum(axis=1, dtype=np.float64)
    return weights, np.log(total) + peak[:, 0].astype(np.float64)


def _top_two_margin(weights: Array, total: Array) -> tuple[Array, Array]:
    """(index of the largest weight, its probability minus that of the second)."""
    rows = np.arange(len(weights))
    first = weights.argmax(axis=1)
    largest = weights[rows, first].copy()
    weights[rows, first] = -1.0
    margin = (largest - weights.max(axis=1)) / total
    weights[rows, first] = largest
    return first, margin


def compare_logits(reference: Array, candidate: Array, tokens: Sequence[int], *, window: int = 0) -> Divergence:
    """KL(reference ‖ candidate) and its companions at N positions.

    reference, candidate: (N, V) float32 logits; tokens: the N ids the text has there. KL = Σ p·(zr − zc) − (Zr − Zc)
    with p and the normalisers Z accumulated in float64, so that identical rows give exactly 0. A position where either
    side is not finite has KL NaN; nothing is clipped.
    """
    rows, ids = np.arange(len(tokens)), np.asarray(tokens)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        weights, z_reference = _normaliser(reference)
        _, z_candidate = _normaliser(candidate)
        total = weights.sum(axis=1, dtype=np.float64)
        spread = np.einsum("nv,nv->n", weights, reference - candidate, dtype=np.float64, casting="same_kind")
        kl = spread / total - (z_reference - z_candidate)
        first, margin = _top_two_margin(weights, total)
        nll_reference = z_reference - reference[rows, ids]
        nll_candidate = z_candidate - candidate[rows, ids]
        p_delta = np.exp(-nll_candidate) - np.exp(-nll_reference)
    return Divergence(
        kl=kl.astype(np.float32),
        same_top=first == candidate.argmax(axis=1),
        reference_margin=margin.astype(np.float32),
        token_nll_delta=(nll_candidate - nll_reference).astype(np.float32),
        token_p_delta=p_delta.astype(np.float32),
        reference_nll=nll_reference.astype(np.float32),
        reference_finite=np.isfinite(z_reference),
        window=np.full(len(tokens), window, np.int32),
        estimator="kl-exact",
    )


def _largest(logits: Array, count: int) -> Array:
    """Indices (N, count) of the largest entries of each row, largest first, ties in favour of the lower index."""
    if count > _FEW:
        part = np.sort(np.argpartition(logits, -count, axis=1)[:, -count:], axis=1)
        order = np.argsort(-np.take_along_axis(logits, part, axis=1), axis=1, kind="stable")
        return np.take_along_axis(part, order, axis=1)
    rows, found = np.arange(len(logits)), []
    left = logits.copy() if count > 1 else logits
    for _ in range(count):
        found.append(left.argmax(axis=1))
        if len(found) < count:
            left[rows, found[-1]] = -np.inf
    return np.stack(found, axis=1)


def list_top(logits: Array, count: int) -> Distributions:
    """The `count` most probable tokens of each row (N, V), with the mass outside them."""
    count = min(count, logits.shape[1])
    ids = _largest(logits, count)
    weights, normaliser = _normaliser(logits)
    logprobs = np.take_along_axis(logits, ids, axis=1).astype(np.float64) - normaliser[:, None]
    total = weights.sum(axis=1, dtype=np.float64)
    np.put_along_axis(weights, ids, 0.0, axis=1)
    outside = weights.sum(axis=1, dtype=np.float64)
    with np.errstate(divide="ignore"):
        tail = np.log(outside / total)
    return Distributions(ids=ids.astype(np.int32), logprobs=logprobs.astype(np.float32), tail=tail.astype(np.float32))


def token_logprobs(logits: Array, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
    """Log-probabilities (N,) of one given token a row."""
    _, normaliser = _normaliser(logits)
    picked = logits[np.arange(len(tokens)), np.asarray(tokens)].astype(np.float64)
    found: npt.NDArray[np.float32] = (picked - normaliser).astype(np.float32)
    return found


def join(parts: Sequence[Divergence]) -> Divergence:
    """One divergence of several, in order. Raises: ValueError where they differ in estimator."""
    if len({part.estimator for part in parts}) != 1:
        raise ValueError("divergences of different estimators cannot be joined")
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS}
    return Divergence(**columns, estimator=parts[0].estimator)
