"""TurboQuant codes against their oracles, at every number of bits, codebook, scale and head dimension."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest
from codec_support import DIMS, assert_mean, codec, gaussian, oracle, relative_errors, roundtrip

from refract.errors import KVUnsupportedError

pytestmark = pytest.mark.usefixtures("mlx")
SCALES = ["matched", "none", "eden", "ls"]


@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize("bits", [1, 2, 3, 4])
@pytest.mark.parametrize("scale", SCALES)
def test_the_error_is_the_simulated_one_of_the_scale(scale: str, bits: int, dim: int) -> None:
    found = relative_errors(f"turbo{bits}:scale={scale}", gaussian(8_000, dim))
    assert_mean(found, *oracle("scale_variants")[f"{dim}_{bits}"][scale])


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize(("codebook", "key"), [("sphere", "D"), ("normal", "D_with_normal_codebook")])
def test_the_unscaled_error_is_the_exact_one(codebook: str, key: str, bits: int, dim: int) -> None:
    found = relative_errors(f"turbo{bits}:scale=none:codebook={codebook}", gaussian(5_000, dim))
    assert_mean(found, oracle("lloyd_max_sphere")[f"{dim}_{bits}"][key], 2e-9)


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("bits", range(1, 9))
def test_scales_order_as_geometry_says(bits: int, dim: int) -> None:
    errors = {scale: relative_errors(f"turbo{bits}:scale={scale}", gaussian(1_000, dim)).mean() for scale in SCALES}
    slack = 1 + 1e-3 * (bits > 5)  # there the scales differ by less than the fp16 they are stored in
    assert errors["ls"] <= errors["matched"] * slack
    assert errors["matched"] <= errors["eden"] * slack
    assert errors["ls"] <= errors["none"] * slack


def test_legacy4_has_twice_the_error() -> None:
    x = gaussian(8_000, 128)
    legacy, present = (relative_errors(f"turbo4:scale=none:codebook={name}", x) for name in ("legacy4", "normal"))
    print(f"legacy4 {legacy.mean():.5f}, {legacy.mean() / present.mean():.3f} times the present codebook's")
    assert legacy.mean() / present.mean() == pytest.approx(2.1, abs=0.05)


def test_the_shipped_codebooks_are_the_oracles() -> None:
    from refract.backends.mlx.codecs.codebooks import centroids

    for bits in range(1, 9):
        half = [float(c) for c in oracle("lloyd_max_normal")[str(bits)]["pos_centroids"]]
        assert centroids("normal", bits, 64)[1 << bits - 1 :] == pytest.approx(half, abs=1e-15)
    for key, entry in oracle("lloyd_max_sphere").items():
        dim, bits = map(int, key.split("_"))
        found = centroids("sphere", bits, dim) / np.sqrt(dim)
        assert found[len(found) // 2 :] == pytest.approx(entry["centroids"], rel=1e-10)
        assert found == pytest.approx(-found[::-1], abs=0)


def test_legacy4_holds_the_means_of_bins_of_equal_probability() -> None:
    from refract.backends.mlx.codecs.codebooks import centroids

    normal = NormalDist()
    edges = [normal.pdf(normal.inv_cdf(0.5 + i / 16)) for i in range(8)] + [0.0]
    means = [16 * (edges[i] - edges[i + 1]) for i in range(8)]
    found = centroids("legacy4", 4, 128)
    assert found[8:] == pytest.approx(means, rel=1e-10)
    assert (found[8], found[15]) == pytest.approx((0.006938 * 128**0.5, 0.173926 * 128**0.5), rel=1e-4)


@pytest.mark.parametrize("bits", range(1, 9))
def test_codes_count_the_boundaries_below(bits: int) -> None:
    """Through buckets as by comparing with every boundary, at and beside the boundaries too."""
    import mlx.core as mx

    from refract.backends.mlx.codecs.codebooks import codebook_levels

    levels = codebook_levels("normal", bits, 64)
    values = np.array(levels.values)
    boundaries = (values[1:] + values[:-1]) / 2
    beside = [np.nextafter(boundaries, np.float32(sign * 9)).astype(np.float32) for sign in (-1, 1)]
    y = np.concatenate(
        [gaussian(2_000, 8).ravel() * 2, boundaries, *beside, np.float32([0, -0.0, 1e30, -1e30, np.inf])]
    )
    codes = np.array(levels.codes(mx.array(y)))
    assert np.array_equal(codes, (y[:, None] > boundaries).sum(axis=1))
    assert codes.dtype == np.uint8
    assert np.array(levels.codes(mx.array([float("nan")]))).item() == 0


def test_the_names_are_canonical() -> None:
    for name in ("turbo1", "turbo8:scale=ls", "turbo4:codebook=legacy4", "turbo3:codebook=sphere:scale=eden"):
        assert codec(name, 64).name == name


def test_a_head_dimension_without_a_sphere_codebook_is_refused() -> None:
    with pytest.raises(KVUnsupportedError, match="not tabulated for this model's head dimension 72"):
        codec("turbo3:codebook=sphere", 72)
    assert codec("turbo3", 72).bits_per_value == 3 + 16 / 72


def test_seeds_give_other_codes_and_the_same_error() -> None:
    x = gaussian(4_000, 64)
    first, second = relative_errors("turbo3", x), relative_errors("turbo3", x, seed=7)
    assert not np.allclose(first, second)
    assert first.mean() == pytest.approx(second.mean(), rel=0.02)
    assert np.array_equal(first, relative_errors("turbo3", x, seed=0))


def test_encode_stores_codes_and_one_half_a_vector() -> None:
    import mlx.core as mx

    turbo = codec("turbo5", 128)
    codes, scales = turbo.encode(mx.array(gaussian(3, 128)))
    assert (codes.shape, codes.dtype, scales.shape, scales.dtype) == ((3, 128), mx.uint8, (3, 1), mx.float16)
    assert int(mx.max(codes)) < 32


@pytest.mark.parametrize("bits", range(1, 9))
def test_the_matched_scale_keeps_the_norm(bits: int) -> None:
    x = gaussian(200, 128).copy()
    x[0], x[1] = 0, 0
    x[1, 7] = 50.0  # one spike
    x[2] = 3.0  # constant
    x[3] *= 1e3
    x[4] *= 1e-4
    norms, kept = np.linalg.norm(x, axis=1), np.linalg.norm(roundtrip(f"turbo{bits}", x), axis=1)
    assert kept == pytest.approx(norms, rel=1e-3, abs=1e-7)


def test_without_a_rotation_coordinates_are_rounded_as_they_are() -> None:
    import mlx.core as mx

    x = gaussian(50, 64)
    codes, _ = codec("turbo4", 64, rot="none").encode(mx.array(x))
    values = np.array(codec("turbo4", 64).levels.values)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True) * 8
    assert np.array_equal(np.array(codes), np.abs(unit[..., None] - values).argmin(axis=-1))
