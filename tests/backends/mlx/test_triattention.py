"""Expected attention of cached keys: the rotation read off the model, and the score against its formula."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import spearmanr

from refract.backends.mlx.rotary import Floats, Rotary, read_rotary
from refract.backends.mlx.triattention import OFFSETS, QueryMeans, head_scores, joint_scores


def rope(vectors: Floats, position: int, *, turned: int, interleaved: bool = False, scale: float = 1.0) -> Floats:
    """Rotary embedding of the first `turned` dimensions at one position, in either order of pairs."""
    half = turned // 2
    angles = position * 10_000.0 ** (-np.arange(half) / half)
    first, second = (slice(0, turned, 2), slice(1, turned, 2)) if interleaved else (slice(half), slice(half, turned))
    found = vectors.copy()
    found[..., first] = scale * (np.cos(angles) * vectors[..., first] - np.sin(angles) * vectors[..., second])
    found[..., second] = scale * (np.sin(angles) * vectors[..., first] + np.cos(angles) * vectors[..., second])
    return found


ROPES = [(16, False, 1.0), (16, True, 1.0), (8, False, 1.0), (16, False, 1.25)]


@pytest.mark.parametrize(("turned", "interleaved", "scale"), ROPES)
def test_the_rotation_is_read_off_whatever_its_layout(turned: int, interleaved: bool, scale: float) -> None:
    rotary = read_rotary(lambda x, p: rope(x, p, turned=turned, interleaved=interleaved, scale=scale), 16)
    half = turned // 2
    assert np.allclose(rotary.omega[:half], 10_000.0 ** (-np.arange(half) / half))
    assert np.allclose(rotary.omega[half:], 0.0)
    assert np.allclose(rotary.scale[:half], scale)
    vectors = np.random.default_rng(0).standard_normal((5, 16))
    pairs = rotary.pairs(vectors)
    assert np.allclose(rotary.flat(pairs), vectors)
    later = rope(vectors, 37, turned=turned, interleaved=interleaved, scale=scale)
    assert np.allclose(rotary.undone(rotary.pairs(later), np.full(5, 37)), pairs)


def test_what_is_no_rotation_by_pairs_is_refused() -> None:
    with pytest.raises(ValueError, match="turns no pair"):
        read_rotary(lambda x, p: x, 4)
    with pytest.raises(ValueError, match="same amount"):
        read_rotary(lambda x, p: rope(x, p * p, turned=4), 4)
    with pytest.raises(ValueError, match="in pairs"):
        read_rotary(lambda x, p: x + p * np.roll(x, 1, axis=-1), 4)


ROTARY = read_rotary(lambda x, p: rope(x, p, turned=16), 16)


def rotated(vectors: Floats, first: int) -> Floats:
    return np.stack([rope(vectors[:, i], first + i, turned=16) for i in range(vectors.shape[1])], axis=1)


def written_out(query_sets: Floats, keys: Floats, t: int, rotary: Rotary, *, largest: bool) -> Floats:
    """The formula, key by key and offset by offset, from vectors before rotation: (H, n)."""
    found = np.zeros((len(query_sets), keys.shape[1]))
    for head, queries in enumerate(query_sets):
        pairs = rotary.pairs(queries)
        mean, size = pairs.mean(axis=0), np.abs(pairs).mean(axis=0)
        shared = keys[head // (len(query_sets) // len(keys))]
        for p, key in enumerate(rotary.pairs(shared)):
            amplitude, phase = np.abs(mean) * np.abs(key), np.angle(mean * key.conj())
            series = [np.sum(amplitude * np.cos((t - p + o) * rotary.omega + phase)) for o in OFFSETS]
            extra = np.sum((size - np.abs(mean)) * np.abs(key))
            found[head, p] = (max(series) if largest else np.mean(series)) + extra
    return found


@pytest.mark.parametrize("largest", [False, True])
def test_the_score_is_the_series_written_out(largest: bool) -> None:
    rng = np.random.default_rng(1)
    queries, keys = rng.standard_normal((4, 9, 16)) + 0.5, rng.standard_normal((2, 12, 16))
    means = QueryMeans.none(4, 8).with_queries(rotated(queries, 3), 3, ROTARY)
    found = head_scores(rotated(keys, 0), means, ROTARY, last=11, largest=largest)
    assert np.allclose(found, written_out(queries, keys, 11, ROTARY, largest=largest))


def test_means_do_not_depend_on_how_queries_came() -> None:
    queries = rotated(np.random.default_rng(2).standard_normal((2, 10, 16)), 0)
    whole = QueryMeans.none(2, 8).with_queries(queries, 0, ROTARY)
    parts = QueryMeans.none(2, 8).with_queries(queries[:, :7], 0, ROTARY).with_queries(queries[:, 7:], 7, ROTARY)
    assert whole.count == parts.count == 10
    assert np.allclose(whole.pairs, parts.pairs)
    assert np.allclose(whole.sizes, parts.sizes)
    with pytest.raises(ValueError, match="no query"):
        head_scores(queries, QueryMeans.none(2, 8), ROTARY, last=9, largest=False)


def test_queries_without_a_spread_expect_exactly_their_dot_products() -> None:
    """With one query for all tokens the score is the mean of its products at the offsets, in numbers by hand."""
    rotary = Rotary(
        real=np.array([0]), imag=np.array([1]), paired=np.ones(1), omega=np.array([np.pi]), scale=np.ones(1)
    )
    query, keys = np.array([[[2.0, 0.0]]]), np.array([[[3.0, 0.0], [-3.0, 0.0]]])  # positions 0 and 1, after rotation
    means = QueryMeans.none(1, 1).with_queries(query, 0, rotary)
    # at t = 1 an odd distance turns by π: offset 1 gives +6 for key 0, the 16 even offsets −6; key 1 the opposite
    found = head_scores(keys, means, rotary, last=1, largest=False)
    assert np.allclose(found, [[(6 - 16 * 6) / 17, (-6 + 16 * 6) / 17]])
    assert np.allclose(head_scores(keys, means, rotary, last=1, largest=True), [[6.0, 6.0]])


def test_the_best_by_maximum_are_the_union_of_every_heads_best() -> None:
    scores = np.random.default_rng(3).standard_normal((6, 40))
    joint, count = joint_scores([scores[:4], scores[4:]], union=True, normalised=False), 10
    union = {int(i) for head in scores for i in np.argsort(-head)[:count]}
    best = sorted(union, key=lambda i: -scores[:, i].max())[:count]
    assert sorted(np.argsort(-joint)[:count]) == sorted(best)


def test_layers_are_joined_by_the_mean_over_heads_and_normalised_ones_count_alike() -> None:
    scores = [np.array([[1.0, 3.0]]), np.array([[100.0, -100.0]])]
    assert np.allclose(joint_scores(scores, union=False, normalised=False), [50.5, -48.5])
    assert np.allclose(joint_scores(scores, union=False, normalised=True), [0.0, 0.0])
    assert np.allclose(joint_scores([np.ones((2, 3))], union=False, normalised=True), 0.0)
    with pytest.raises(ValueError, match="no layer"):
        joint_scores([], union=True, normalised=False)


def test_high_scores_are_attended_to() -> None:
    """A head whose queries and keys gather around means: the better half keeps most of the attention, the worse little.

    The order of the llama.cpp port, which evicts the highest scores, is the second.
    """
    rng, dim, count = np.random.default_rng(4), 64, 512
    rotary = read_rotary(lambda x, p: rope(x, p, turned=dim), dim)
    centre_q, centre_k = 1.5 * rng.standard_normal(dim), rng.standard_normal(dim)
    queries = centre_q + rng.standard_normal((count + 64, dim))
    keys = centre_k + rng.standard_normal((count, dim))
    at = [rope(queries[i], i, turned=dim) for i in range(count + 64)]
    cached = np.stack([rope(keys[i], i, turned=dim) for i in range(count)])
    means = QueryMeans.none(1, dim // 2).with_queries(np.stack(at[:count])[None], 0, rotary)
    scores = head_scores(cached[None], means, rotary, last=count - 1, largest=False)[0]
    logits = np.stack(at[count:]) @ cached.T / np.sqrt(dim)
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    mass = (weights / weights.sum(axis=1, keepdims=True)).mean(axis=0)
    order = np.argsort(scores)
    best, worst = mass[order[count // 2 :]].sum(), mass[order[: count // 2]].sum()
    print(f"the better half keeps {best:.3f} of the attention, the worse {worst:.3f}")
    assert spearmanr(scores, mass).statistic > 0.7
    assert best > 0.8
    assert worst < 0.2
