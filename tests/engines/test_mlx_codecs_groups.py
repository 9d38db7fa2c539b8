"""Formats that scale groups or blocks of values: llama.cpp's, MLX's, min/max, RFSN; and 8-bit floating point."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from codec_support import Array, assert_mean, codec, gaussian, oracle, roundtrip, squared_errors

pytestmark = pytest.mark.usefixtures("mlx")
KEYS = {
    **{name: name for name in ("q8_0", "q5_1", "q5_0", "q4_1", "q4_0")},
    "iq4_nl": "iq4_nl(runtime)",
    **{f"affine{bits}": f"mlx_affine{bits}_g64" for bits in (2, 3, 4, 6, 8)},
    **{f"affine{bits}:g=32": f"mlx_affine{bits}_g32" for bits in (4, 8)},
    **{name: f"{name}_unscaled" for name in ("fp8_e4m3", "fp8_e5m2")},
    **{f"rfsn{bits}": f"rfsn_sym_b{bits}_g32" for bits in (2, 3, 4, 5, 6, 8)},
    **{f"rfsn{bits}:g=64": f"rfsn_sym_b{bits}_g64" for bits in (3, 4, 5, 8)},
    **{f"minmax{bits}": f"minmax_g32_b{bits}(KIVI)" for bits in (2, 4)},
    **{f"minmax{bits}:g=head": f"minmax_g128_b{bits}(vLLM V)" for bits in (3, 4)},
}
IQ4_NL = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


@pytest.mark.parametrize("name", KEYS)
def test_the_error_is_the_oracles(name: str) -> None:
    assert_mean(
        squared_errors(name, gaussian(20_000, 128)), *oracle("reference_values")["quantiser_mse_N01"][KEYS[name]]
    )


def awkward(vectors: int = 3_000) -> Array:
    """Gaussian blocks of every magnitude, and a zero, a constant, a spike, a tie and a negative extreme among them."""
    x = gaussian(vectors, 64) * np.float32(10.0) ** np.random.default_rng(3).integers(-6, 4, (vectors, 1))
    x = x.astype(np.float32)
    x[0], x[1], x[2, 5], x[3], x[4, 1], x[5] = 0, 1.25, 1e4, 0.5, -7e3, 1e-20
    x[3, ::2] = -0.5
    return x


@pytest.mark.parametrize("name", ["q8_0", "q5_1", "q5_0", "q4_1", "q4_0"])
def test_blocks_are_bit_exact_to_the_gguf_package(name: str) -> None:
    gguf = pytest.importorskip("gguf")
    kind, x = gguf.GGMLQuantizationType[name.upper()], awkward()
    expected = gguf.quants.dequantize(gguf.quants.quantize(x, kind), kind)
    assert np.array_equal(roundtrip(name, x), expected)


def iq4_nl_bytes(blocks: Array) -> Any:
    """`quantize_row_iq4_nl_ref` of ggml-quants.c over blocks (n, 32), sums in the C loop's order: (n, 18) bytes."""
    levels, n = np.float32(IQ4_NL), len(blocks)
    extreme = blocks[np.arange(n), np.abs(blocks).argmax(axis=1)]
    scale = extreme / levels[0]
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale != 0)
    scaled = blocks * inverse[:, None]
    upper = np.searchsorted(levels, scaled, side="right").clip(1, 15)
    codes = np.where(scaled - levels[upper - 1] < levels[upper] - scaled, upper - 1, upper)
    top, below = np.zeros(n, np.float32), np.zeros(n, np.float32)
    for j in range(32):
        level, weight = levels[codes[:, j]], blocks[:, j] * blocks[:, j]
        top, below = top + weight * level * blocks[:, j], below + weight * level * level
    fitted = np.divide(top, below, out=np.zeros_like(top), where=np.abs(extreme) >= 1e-15).astype(np.float16)
    nibbles = (codes[:, :16] | codes[:, 16:] << 4).astype(np.uint8)
    return np.concatenate([fitted[:, None].view(np.uint8), nibbles], axis=1)


def test_iq4_nl_is_bit_exact_to_the_c_source_and_the_gguf_package() -> None:
    gguf = pytest.importorskip("gguf")
    x = awkward()
    stored = iq4_nl_bytes(x.reshape(-1, 32)).reshape(len(x), -1)
    expected = gguf.quants.dequantize(stored, gguf.GGMLQuantizationType.IQ4_NL)
    assert np.array_equal(roundtrip("iq4_nl", x), expected)


@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_affine_is_bit_equal_to_mlx(bits: int, group: int) -> None:
    import mlx.core as mx

    x = mx.array(gaussian(500, 128)).astype(mx.float16)
    expected = mx.dequantize(*mx.quantize(x, group_size=group, bits=bits), group_size=group, bits=bits)
    stored = codec(f"affine{bits}:g={group}", 128)
    assert mx.array_equal(stored.roundtrip(x), expected)
    parts = stored.encode(x)
    assert sum(part.nbytes for part in parts) * 8 == x.size * stored.bits_per_value


@pytest.mark.parametrize("group", ["32", "64", "128", "head"])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_minmax_reaches_both_ends_and_errs_by_half_a_step_at_most(bits: int, group: str) -> None:
    x = gaussian(300, 128)
    groups = x.reshape(300, -1, 128 if group == "head" else int(group))
    out = roundtrip(f"minmax{bits}:g={group}", x).reshape(groups.shape)
    span = groups.max(axis=-1, keepdims=True) - groups.min(axis=-1, keepdims=True)
    assert (np.abs(out - groups) <= span / (2**bits - 1) / 2 + span * 2**-9).all()


@pytest.mark.parametrize("bits", range(2, 9))
def test_rfsn_words_give_back_every_code(bits: int) -> None:
    import mlx.core as mx

    from refract.backends.mlx.codecs.rfsn import pack, unpack

    top = (1 << bits - 1) - 1
    for count in (1, 32, 33, 128):
        codes = np.random.default_rng(bits).integers(-top, top + 1, (5, 2, count)).astype(np.int8)
        words = pack(mx.array(codes), bits)
        assert (words.dtype, words.shape) == (mx.uint32, (5, 2, -(-count // (32 // bits))))
        assert np.array_equal(np.array(unpack(words, bits, count)), codes)


def test_rfsn_packs_the_lowest_bits_first() -> None:
    import mlx.core as mx

    from refract.backends.mlx.codecs.rfsn import pack

    assert pack(mx.array([-1, 0, 1, 1]), 8).tolist() == [127 | 128 << 8 | 129 << 16 | 129 << 24]


FP8_VALUES = {  # OCP OFP8 v1.0, table 1 and its neighbours: code -> value
    "fp8_e4m3": {0x01: 2**-9, 0x07: 7 * 2**-9, 0x08: 2**-6, 0x38: 1.0, 0x39: 1.125, 0x77: 240.0, 0x7E: 448.0},
    "fp8_e5m2": {0x01: 2**-16, 0x03: 3 * 2**-16, 0x04: 2**-14, 0x3C: 1.0, 0x3D: 1.25, 0x7B: 57344.0, 0x7C: np.inf},
}


def decoded(name: str) -> Array:
    """The values of all 256 codes."""
    import mlx.core as mx

    return np.array(codec(name, 64).decode(mx.arange(256).astype(mx.uint8)))


@pytest.mark.parametrize("name", FP8_VALUES)
def test_fp8_codes_have_the_standards_values(name: str) -> None:
    values = decoded(name)
    assert {code: float(values[code]) for code in FP8_VALUES[name]} == FP8_VALUES[name]
    assert np.array_equal(values[128:], -values[:128], equal_nan=True)
    finite = values[:128][np.isfinite(values[:128])]
    assert (np.diff(finite) > 0).all()
    assert np.isnan(values[:128]).sum() == (1 if name == "fp8_e4m3" else 3)


def test_fp8_e4m3_is_mlxs_own_table() -> None:
    import mlx.core as mx

    theirs = np.array(mx.from_fp8(mx.arange(256).astype(mx.uint8), dtype=mx.float32))
    ours = decoded("fp8_e4m3")
    assert np.array_equal(ours[~np.isnan(ours)], theirs[~np.isnan(ours)])


@pytest.mark.parametrize("name", FP8_VALUES)
def test_fp8_rounds_to_the_nearest_and_ties_to_even(name: str) -> None:
    """Every code, every midpoint between neighbours, and what lies beside a midpoint, in float32."""
    values = decoded(name)[:128]
    finite = values[np.isfinite(values)]
    assert np.array_equal(roundtrip(name, np.tile(finite, (1, 1))), finite[None])
    middle = ((finite[:-1].astype(np.float64) + finite[1:]) / 2).astype(np.float32)
    even = np.where(np.arange(len(middle)) % 2, finite[1:], finite[:-1])
    for sign in np.float32([1, -1]):
        for x, expected in (
            (middle, even),
            (np.nextafter(middle, np.float32(0)), finite[:-1]),
            (np.nextafter(middle, np.float32(np.inf)), finite[1:]),
        ):
            assert np.array_equal(roundtrip(name, sign * x[None]), sign * expected[None])


@pytest.mark.parametrize(("name", "largest"), [("fp8_e4m3", 448.0), ("fp8_e5m2", 57344.0)])
def test_fp8_saturates_and_keeps_what_is_not_a_number(name: str, largest: float) -> None:
    x = np.float32([[1e30, -1e30, largest * 1.2, np.nan, np.inf, -np.inf, -0.0, 1e-30]])
    out = roundtrip(name, x)[0]
    assert out[:3].tolist() == [largest, -largest, largest]
    assert np.isnan(out[3])
    assert (np.isnan(out[4:6]).all()) if name == "fp8_e4m3" else (out[4], out[5]) == (np.inf, -np.inf)
    assert out[6:].tolist() == [0, 0]


@pytest.mark.parametrize("name", ["fp8_e4m3", "fp8_e5m2"])
def test_fp8_with_a_scale_errs_alike_at_every_magnitude(name: str) -> None:
    x = gaussian(2_000, 64)
    errors = [
        ((roundtrip(f"{name}:scale=head", x * np.float32(size)) / np.float32(size) - x) ** 2).mean()
        for size in (1e-3, 1, 1e4)
    ]
    assert errors == pytest.approx([errors[1]] * 3, rel=0.05)
    assert errors[1] <= ((roundtrip(name, x) - x) ** 2).mean() * 1.02
