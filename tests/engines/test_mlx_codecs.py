"""The codecs' rounding against oracles, other implementations, and the inputs that break them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from refract.errors import KVUnsupportedError
from refract.formats import BUILT
from refract.kv import parse_kv

pytestmark = pytest.mark.usefixtures("mlx")
ORACLES = Path(__file__).parents[1] / "oracles"
Array = npt.NDArray[np.float32]


def codec(name: str, dim: int) -> Any:
    from refract.backends.mlx.codecs import make_codec

    return make_codec(parse_kv(f"ctk={name},ctv=f16").k, dim)


def roundtrip(name: str, x: Array) -> Array:
    import mlx.core as mx

    return np.array(codec(name, x.shape[-1]).roundtrip(mx.array(x)))


def gaussian(vectors: int, dim: int, seed: int = 1) -> Array:
    return np.random.default_rng(seed).standard_normal((vectors, dim)).astype(np.float32)


def relative_errors(name: str, x: Array) -> npt.NDArray[np.float64]:
    error = (roundtrip(name, x).astype(np.float64) - x) ** 2
    return error.sum(axis=1) / (x.astype(np.float64) ** 2).sum(axis=1)


@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize("bits", [2, 3, 4])
def test_turbo_error_equals_the_simulated_matched_scale(bits: int, dim: int) -> None:
    expected, error = json.loads((ORACLES / "scale_variants.json").read_text())[f"{dim}_{bits}"]["matched"]
    found = relative_errors(f"turbo{bits}", gaussian(30_000, dim))
    margin = 4 * np.hypot(error, found.std() / np.sqrt(len(found)))
    assert found.mean() == pytest.approx(expected, abs=margin)


@pytest.mark.parametrize(
    ("name", "key"),
    [("q8_0", "q8_0"), ("q4_0", "q4_0"), ("affine8", "mlx_affine8_g64"), ("affine4", "mlx_affine4_g64")],
)
def test_group_formats_have_the_oracles_error(name: str, key: str) -> None:
    expected, error = json.loads((ORACLES / "reference_values.json").read_text())["quantiser_mse_N01"][key]
    x = gaussian(40_000, 128)
    squares = ((roundtrip(name, x) - x) ** 2).mean(axis=1)
    assert squares.mean() == pytest.approx(expected, abs=4 * np.hypot(error, squares.std() / np.sqrt(len(squares))))


@pytest.mark.parametrize(("name", "kind"), [("q8_0", "Q8_0"), ("q4_0", "Q4_0")])
def test_block_formats_are_bit_exact_to_the_gguf_package(name: str, kind: str) -> None:
    gguf = pytest.importorskip("gguf")
    x = gaussian(4_000, 64) * np.float32(3.7)
    x[0], x[1, :32], x[2, 5] = 0, 1.25, 1e4
    codes = gguf.quants.quantize(x, gguf.GGMLQuantizationType[kind])
    expected = gguf.quants.dequantize(codes, gguf.GGMLQuantizationType[kind])
    assert np.array_equal(roundtrip(name, x), expected)


@pytest.mark.parametrize("group", [32, 64, 128])
def test_affine_is_bit_equal_to_mlx(group: int) -> None:
    import mlx.core as mx

    x = mx.array(gaussian(500, 128)).astype(mx.float16)
    expected = mx.dequantize(*mx.quantize(x, group_size=group, bits=4), group_size=group, bits=4)
    assert mx.array_equal(codec(f"affine4:g={group}", 128).roundtrip(x), expected)


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_turbo_centroids_are_the_oracles(bits: int) -> None:
    from refract.backends.mlx.codecs.turbo import CENTROIDS

    oracle = json.loads((ORACLES / "lloyd_max_normal.json").read_text())[str(bits)]["pos_centroids"]
    assert CENTROIDS[bits] == pytest.approx([float(c) for c in oracle], abs=1e-15)


@pytest.mark.parametrize("name", BUILT["mlx"])
def test_bits_per_value_are_those_of_the_catalogue(name: str) -> None:
    assert codec(name, 128).bits_per_value == parse_kv(f"ctk={name},ctv=f16").k.bits_per_value(128)


def test_every_built_format_has_a_codec_and_no_other() -> None:
    from refract.backends.mlx.codecs import CODECS

    assert set(CODECS) == set(BUILT["mlx"])


@pytest.mark.parametrize("name", BUILT["mlx"])
def test_zero_stays_zero_and_a_vector_minds_no_other(name: str) -> None:
    x = gaussian(64, 64)
    alone = roundtrip(name, x[:1])
    x[1] = 0
    together = roundtrip(name, x)
    assert not together[1].any()
    assert np.allclose(together[0], alone[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["turbo2", "turbo3", "turbo4"])
def test_turbo_keeps_the_norm_of_every_vector(name: str) -> None:
    x = gaussian(200, 128)
    x[0], x[1] = 0, 0
    x[1, 7] = 50.0  # one spike
    x[2] = 3.0  # constant
    x[3] *= 1e3
    x[4] *= 1e-4
    norms, kept = np.linalg.norm(x, axis=1), np.linalg.norm(roundtrip(name, x), axis=1)
    assert kept == pytest.approx(norms, rel=1e-3, abs=1e-7)


@pytest.mark.parametrize("name", BUILT["mlx"])
def test_nan_stays_visible(name: str) -> None:
    x = gaussian(3, 64)
    x[1, 4] = np.nan
    out = roundtrip(name, x)
    assert np.isnan(out[1]).any()
    assert np.isfinite(out[[0, 2]]).all()


@pytest.mark.parametrize("dim", [64, 80, 96, 128, 256])
def test_rotations_are_orthogonal(dim: int) -> None:
    from refract.backends.mlx.codecs.rotations import rotation

    matrix = np.array(rotation(dim, 0)).astype(np.float64)
    assert matrix @ matrix.T == pytest.approx(np.eye(dim), abs=2e-6)


def test_hadamard_of_one_to_eight_is_the_published_vector() -> None:
    from refract.backends.mlx.codecs.rotations import hadamard

    found = hadamard(8) @ np.arange(1, 9) / np.sqrt(8)
    assert found == pytest.approx([12.72792206, -1.41421356, -2.82842712, 0, -5.65685425, 0, 0, 0], abs=1e-8)


@pytest.mark.parametrize(("name", "dim"), [("q8_0", 80), ("q4_0", 80), ("affine8", 96)])
def test_groups_that_do_not_divide_the_head_are_refused(name: str, dim: int) -> None:
    with pytest.raises(KVUnsupportedError, match=f"head dimension {dim} is not a multiple"):
        codec(name, dim)
