"""llama.cpp's block formats along the head dimension: 32 values share one fp16 scale.

Codes are chosen with the float32 scale and read back with its fp16 rounding, as `quantize_row_*_ref` and
`dequantize_row_*` of ggml-quants.c do (llama.cpp b11434); results are bit-exact to them in float32.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

BLOCK = 32


def _blocks(x: mx.array) -> mx.array:
    return x.astype(mx.float32).reshape(*x.shape[:-1], -1, BLOCK)


def _inverse(scale: mx.array) -> mx.array:
    return mx.where(scale == 0, 0.0, 1.0 / scale)


def _stored(scale: mx.array) -> mx.array:
    return scale.astype(mx.float16).astype(mx.float32)


@dataclass(frozen=True, slots=True)
class Q8_0:  # noqa: N801  # the format's own name
    """d = max|x| / 127, codes round half away from zero; 34 bytes per 32 values."""

    name = "q8_0"
    bits_per_value = 8.5

    def roundtrip(self, x: mx.array) -> mx.array:
        """`x` (…, D) with D a multiple of 32, block by block through int8 codes."""
        blocks = _blocks(x)
        scale = mx.max(mx.abs(blocks), axis=-1, keepdims=True) / 127.0
        scaled = blocks * _inverse(scale)
        codes = mx.sign(scaled) * mx.floor(mx.abs(scaled) + 0.5)
        return (codes * _stored(scale)).reshape(x.shape).astype(x.dtype)


@dataclass(frozen=True, slots=True)
class Q4_0:  # noqa: N801  # the format's own name
    """d = (the value of largest magnitude) / −8, codes 0…15 around 8; 18 bytes per 32 values."""

    name = "q4_0"
    bits_per_value = 4.5

    def roundtrip(self, x: mx.array) -> mx.array:
        """`x` (…, D) with D a multiple of 32, block by block through 4-bit codes."""
        blocks = _blocks(x)
        extreme = mx.take_along_axis(blocks, mx.argmax(mx.abs(blocks), axis=-1, keepdims=True), axis=-1)
        scale = extreme / -8.0
        codes = mx.minimum(mx.floor(blocks * _inverse(scale) + 8.5), 15.0)
        return ((codes - 8.0) * _stored(scale)).reshape(x.shape).astype(x.dtype)
