"""llama.cpp's block formats along the head dimension: 32 values share an fp16 scale, in some an fp16 minimum too.

Codes are chosen with the float32 scale and read back with its fp16 rounding, as `quantize_row_*_ref` and
`dequantize_row_*` of ggml-quants.c do (llama.cpp b11434); results are bit-exact to them in float32. Parts of
`encode`, for `x` (…, D): codes (…, D / 32, 32), then scales and minima (…, D / 32, 1) float16.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from refract.backends.mlx.codecs.base import grouped, inverse, ungrouped

BLOCK = 32
_IQ4_NL = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_IQ4_NL_EPSILON = 1e-15  # blocks below it are stored as zero


def _extreme(blocks: mx.array) -> mx.array:
    """The value of largest magnitude of each block, the first of equals."""
    return mx.take_along_axis(blocks, mx.argmax(mx.abs(blocks), axis=-1, keepdims=True), axis=-1)


@dataclass(frozen=True, slots=True)
class Q8_0:  # noqa: N801  # the format's own name
    """d = max|x| / 127, codes round half away from zero; 34 bytes per 32 values."""

    name = "q8_0"
    bits_per_value = 8.5

    def encode(self, x: mx.array) -> tuple[mx.array, ...]:
        """Codes int8 and scales."""
        blocks = grouped(x, BLOCK)
        scale = mx.max(mx.abs(blocks), axis=-1, keepdims=True) / 127.0
        scaled = blocks * inverse(scale)
        codes = mx.sign(scaled) * mx.floor(mx.abs(scaled) + 0.5)
        return codes.astype(mx.int8), scale.astype(mx.float16)

    def decode(self, *parts: mx.array) -> mx.array:
        """code · d."""
        codes, scales = parts
        return ungrouped(codes.astype(mx.float32) * scales.astype(mx.float32))

    def roundtrip(self, x: mx.array) -> mx.array:
        """`x` (…, D) with D a multiple of 32, block by block through the codes."""
        return self.decode(*self.encode(x)).astype(x.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Symmetric:
    """q4_0, q5_0: d = (the value of largest magnitude) / −2^(b−1), codes 0 … 2^b − 1 around 2^(b−1).

    18 and 22 bytes per 32 values.
    """

    bits: int

    @property
    def name(self) -> str:
        """q4_0, q5_0."""
        return f"q{self.bits}_0"

    @property
    def bits_per_value(self) -> float:
        """b + 16/32."""
        return self.bits + 16 / BLOCK

    @property
    def code_bits(self) -> tuple[int, ...]:
        """Of a code."""
        return (self.bits,)

    def encode(self, x: mx.array) -> tuple[mx.array, ...]:
        """Codes uint8 and scales."""
        blocks, half = grouped(x, BLOCK), 1 << self.bits - 1
        scale = _extreme(blocks) / float(-half)
        codes = mx.minimum(mx.floor(blocks * inverse(scale) + (half + 0.5)), 2.0 * half - 1.0)
        return codes.astype(mx.uint8), scale.astype(mx.float16)

    def decode(self, *parts: mx.array) -> mx.array:
        """(code − 2^(b−1)) · d."""
        codes, scales = parts
        return ungrouped((codes.astype(mx.float32) - float(1 << self.bits - 1)) * scales.astype(mx.float32))

    def roundtrip(self, x: mx.array) -> mx.array:
        """`x` (…, D) with D a multiple of 32, block by block through the codes."""
        return self.decode(*self.encode(x)).astype(x.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranged:
    """q4_1, q5_1: m = min x, d = (max x − m) / (2^b − 1), code = ⌊(x − m) / d + ½⌋; 20 and 24 bytes per 32 values."""

    bits: int

    @property
    def name(self) -> str:
        """q4_1, q5_1."""
        return f"q{self.bits}_1"

    @property
    def bits_per_value(self) -> float:
        """b + 32/32."""
        return self.bits + 32 / BLOCK

    @property
    def code_bits(self) -> tuple[int, ...]:
        """Of a code."""
        return (self.bits,)

    def encode(self, x: mx.array) -> tuple[mx.array, ...]:
        """Codes uint8, scales and minima."""
        blocks, top = grouped(x, BLOCK), float((1 << self.bits) - 1)
        low = mx.min(blocks, axis=-1, keepdims=True)
        scale = (mx.max(blocks, axis=-1, keepdims=True) - low) / top
        codes = mx.minimum(mx.floor((blocks - low) * inverse(scale) + 0.5), top)
        return codes.astype(mx.uint8), scale.astype(mx.float16), low.astype(mx.float16)

    def decode(self, *parts: mx.array) -> mx.array:
        """code · d + m."""
        codes, scales, lows = (part.astype(mx.float32) for part in parts)
        return ungrouped(codes * scales + lows)

    def roundtrip(self, x: mx.array) -> mx.array:
        """`x` (…, D) with D a multiple of 32, block by block through the codes."""
        return self.decode(*self.encode(x)).astype(x.dtype)


@dataclass(frozen=True, slots=True)
class IQ4NL:
    """16 uneven levels v; the path of `quantize_row_iq4_nl_ref`, which a KV cache takes (no search over scales).

    d₀ = (the value of largest magnitude) / −127, code = the level nearest to x / d₀, d = Σ x²·v·x / Σ x²·v²; 18 bytes
    per 32 values. The sums run in the order of the C loop, which a cumulative sum does on a CPU.
    """

    name = "iq4_nl"
    bits_per_value = 4.5
    code_bits = (4,)

    def encode(self, x: mx.array) -> tuple[mx.array, ...]:
        """Codes uint8 and scales."""
        blocks, levels = grouped(x, BLOCK), mx.array(_IQ4_NL, dtype=mx.float32)
        first = _extreme(blocks) / levels[0]
        scaled = blocks * inverse(first)
        codes = mx.sum(scaled[..., None] >= (levels[1:] + levels[:-1]) / 2, axis=-1).astype(mx.uint8)
        chosen = levels[codes]
        weighted = mx.square(blocks) * chosen
        fitted = _sequential_sum(weighted * blocks) / _sequential_sum(weighted * chosen)
        empty = mx.max(mx.abs(blocks), axis=-1, keepdims=True) < _IQ4_NL_EPSILON
        return codes, mx.where(empty, 0.0, fitted).astype(mx.float16)

    def decode(self, *parts: mx.array) -> mx.array:
        """v(code) · d."""
        codes, scales = parts
        return ungrouped(mx.array(_IQ4_NL, dtype=mx.float32)[codes] * scales.astype(mx.float32))

    def roundtrip(self, x: mx.array) -> mx.array:
        """`x` (…, D) with D a multiple of 32, block by block through the codes."""
        return self.decode(*self.encode(x)).astype(x.dtype)


def _sequential_sum(x: mx.array) -> mx.array:
    return mx.cumsum(x, axis=-1)[..., -1:]
