"""QJL and the codecs it stands behind: unbiased, with the variance of theory, and worse than plain codes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from codec_support import Array, assert_mean, codec, gaussian, oracle, relative_errors

from refract.errors import KVUnsupportedError
from refract.kv import parse_kv

pytestmark = pytest.mark.usefixtures("mlx")
VARIANCES = {"gauss": (1.571, 1.321, 0.761), "orth": (0.570, 0.445, 0.165)}  # times D, at cosines 0, .5, .9


def sketch(kind: str, dim: int, count: int, seed: int = 0) -> Any:
    from refract.backends.mlx.codecs.sketch import Sketch

    return Sketch(kind=kind, dim=dim, count=count, seed=seed)  # type: ignore[arg-type]


def estimated(kind: str, x: Array, count: int, seed: int) -> Array:
    import mlx.core as mx

    own = sketch(kind, x.shape[1], count, seed)
    return np.array(own.decode(*own.encode(mx.array(x))))


def pairs(cosine: float, count: int, dim: int) -> tuple[Array, Array]:
    """Unit vectors (q, k) at this cosine."""
    rng = np.random.default_rng(3)
    q, other = (rng.standard_normal((count, dim)) for _ in range(2))
    q /= np.linalg.norm(q, axis=1, keepdims=True)
    other -= (other * q).sum(axis=1, keepdims=True) * q
    other /= np.linalg.norm(other, axis=1, keepdims=True)
    return q.astype(np.float32), (cosine * q + (1 - cosine**2) ** 0.5 * other).astype(np.float32)


@pytest.mark.parametrize("kind", ["gauss", "orth"])
@pytest.mark.parametrize(("place", "cosine"), [(0, 0.0), (1, 0.5), (2, 0.9)])
def test_inner_products_are_unbiased_with_the_variance_of_theory(kind: str, place: int, cosine: float) -> None:
    dim = 128
    q, k = pairs(cosine, 1_500, dim)
    found = np.stack([(q * estimated(kind, k, dim, seed)).sum(axis=1) for seed in range(12)])
    assert_mean(found.mean(axis=1).astype(np.float64), cosine, 2e-4)  # the norm is stored in fp16
    assert found.var() * dim == pytest.approx(VARIANCES[kind][place], rel=0.06)


def test_fewer_signs_are_as_much_noisier() -> None:
    q, k = pairs(0.5, 1_500, 128)
    found = np.stack([(q * estimated("gauss", k, 32, seed)).sum(axis=1) for seed in range(12)])
    assert found.mean() == pytest.approx(0.5, abs=0.02)
    assert found.var() * 32 == pytest.approx(VARIANCES["gauss"][1], rel=0.1)


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("bits", [2, 3, 4])
def test_the_error_of_prod_is_that_of_one_bit_less_times_a_constant(bits: int, dim: int) -> None:
    plain = oracle("lloyd_max_sphere")[f"{dim}_{bits - 1}"]["D_with_normal_codebook"]
    found = [relative_errors(f"turbo{bits}:prod=1:scale=none", gaussian(2_000, dim), seed=s).mean() for s in range(8)]
    expected = plain * (np.pi / 2 - 1 / dim)
    print(f"turbo{bits}:prod=1 at {dim}: {np.mean(found):.5f}, expected {expected:.5f}")
    assert np.mean(found) == pytest.approx(expected, rel=0.03)  # a projection of its own moves it by 1 %


def test_one_bit_of_prod_is_the_sketch_alone() -> None:
    own = codec("turbo1:prod=1", 64)
    assert own.codec is None
    found = [relative_errors("turbo1:prod=1", gaussian(1_000, 64), seed=s).mean() for s in range(8)]
    assert np.mean(found) == pytest.approx(np.pi / 2 - 1 / 64, rel=0.05)


def attention_kl(name: str, qjl: str = "0", seeds: int = 3) -> float:
    """Mean KL of the softmax over 512 keys, 25 of which the query is for, with keys through the codec."""
    import mlx.core as mx

    from refract.backends.mlx.codecs import make_codec

    dim, found = 128, []
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        queries = rng.standard_normal((16, dim))
        for query in queries:
            keys = rng.standard_normal((512, dim))
            keys[:25] += 2.0 * query
            own = make_codec(parse_kv(f"ctk={name},ctv=f16").k, dim, seed=seed, qjl=qjl)
            kept = np.array(own.roundtrip(mx.array(keys.astype(np.float32)))).astype(np.float64)
            logs = []
            for side in (keys, kept):
                scores = side @ query * 1.5 / dim**0.5
                logs.append(scores - scores.max() - np.log(np.exp(scores - scores.max()).sum()))
            found.append((np.exp(logs[0]) * (logs[0] - logs[1])).sum())
    return float(np.mean(found))


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_at_equal_bits_a_sketch_is_worse_than_codes(bits: int) -> None:
    plain, prod = attention_kl(f"turbo{bits}"), attention_kl(f"turbo{bits}:prod=1:scale=none")
    orth = attention_kl(f"turbo{bits}:prod=1:scale=none", qjl="orth")
    print(f"{bits} bits: codes {plain:.4f}, gaussian sketch {prod:.4f}, orthonormal {orth:.4f}")
    assert 1.3 * plain < orth < prod
    assert prod > 3 * plain


@pytest.mark.parametrize(
    ("name", "qjl", "bits"),
    [
        ("turbo4:prod=1", "0", 4 + 32 / 64),
        ("turbo1:prod=1", "0", 1 + 16 / 64),
        ("q8_0", "gauss", 8.5 + 1 + 16 / 64),
        ("turbo3", "orth:m=32", 3 + 16 / 64 + 0.5 + 16 / 64),
    ],
)
def test_what_is_stored_is_what_is_counted(name: str, qjl: str, bits: float) -> None:
    import mlx.core as mx

    from refract.backends.mlx.codecs import make_codec

    own = make_codec(parse_kv(f"ctk={name},ctv=f16").k, 64, qjl=qjl)
    assert own.bits_per_value == bits
    *_, signs, norms = own.encode(mx.array(gaussian(4, 64)))
    assert (signs.dtype, norms.dtype) == (mx.uint8, mx.float16)
    assert signs.shape[-1] + 16 == own.sketch.bits_per_value * 64


def test_the_modifier_reaches_keys_and_only_keys() -> None:
    from refract.backends.mlx.codecs import side_codecs

    (k, _), (v, _) = side_codecs(parse_kv("ctk=turbo3,ctv=turbo3,qjl=orth:m=16,seed=5"), 64)
    assert (k.sketch.kind, k.sketch.count, k.sketch.seed) == ("orth", 16, 5)
    assert not hasattr(v, "sketch")


def test_more_orthogonal_directions_than_there_are_dimensions() -> None:
    from refract.backends.mlx.codecs import side_codecs

    with pytest.raises(KVUnsupportedError, match="qjl=orth:m=65 needs as many orthogonal directions"):
        side_codecs(parse_kv("ctk=q8_0,ctv=f16,qjl=orth:m=65"), 64)


@pytest.mark.parametrize("name", ["turbo4:prod=1", "turbo1:prod=1"])
def test_extreme_vectors(name: str) -> None:
    import mlx.core as mx

    own, x = codec(name, 64), gaussian(4, 64)
    found = np.array(own.roundtrip(mx.array(np.stack([np.zeros(64), 1e-8 * x[0], 1e4 * x[1] / 8]).astype(np.float32))))
    assert not found[0].any()
    assert np.isfinite(found).all()
    spoiled = x.copy()
    spoiled[1, 3] = np.nan
    read = np.array(own.roundtrip(mx.array(spoiled)))
    assert np.isnan(read[1]).all()
    assert np.isfinite(read[[0, 2, 3]]).all()
