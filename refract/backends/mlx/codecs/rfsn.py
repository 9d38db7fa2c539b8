"""RFSN's grouped symmetric codes: x̂ = code · s with s = max|x| / (2^(b−1) − 1) in float32 per group of g channels.

They are kept as ⌊32/b⌋ whole codes in a 32-bit word, lowest bits first, so that 3, 5, 6 and 7 bits take 3.2, 5⅓, 6.4
and 8; `pack` and `unpack` go from codes to words and back for every width.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from refract.backends.mlx.codecs.base import grouped, inverse, spelled, ungrouped


@dataclass(frozen=True, slots=True, kw_only=True)
class RFSN:
    """`bits`-bit signed codes, −q … q with q = 2^(b−1) − 1, and a float32 scale per `group` channels."""

    bits: int
    group: int = 32

    @property
    def name(self) -> str:
        """rfsn5, rfsn8:g=64."""
        return spelled(f"rfsn{self.bits}", g=str(self.group))

    @property
    def bits_per_value(self) -> float:
        """32 / ⌊32/b⌋ + 32/g; the last word of a vector may have room left, which is not counted."""
        return 32 / (32 // self.bits) + 32 / self.group

    def encode(self, x: mx.array) -> tuple[mx.array, ...]:
        """Codes (…, D / g, g) int8 and scales (…, D / g, 1) float32 of `x` (…, D)."""
        groups, top = grouped(x, self.group), float((1 << self.bits - 1) - 1)
        scale = mx.max(mx.abs(groups), axis=-1, keepdims=True) / top
        codes = mx.round(groups * inverse(scale))
        return mx.minimum(mx.maximum(codes, -top), top).astype(mx.int8), scale

    def decode(self, *parts: mx.array) -> mx.array:
        """code · s (…, D), float32."""
        codes, scales = parts
        return ungrouped(codes.astype(mx.float32) * scales)

    def roundtrip(self, x: mx.array) -> mx.array:
        """`x` (…, D), D a multiple of the group, through the codes."""
        return self.decode(*self.encode(x)).astype(x.dtype)


def pack(codes: mx.array, bits: int) -> mx.array:
    """Words (…, ⌈n / ⌊32/b⌋⌉) uint32 of signed codes (…, n), each below 2^(b−1) in magnitude; zeros fill the last."""
    per_word = 32 // bits
    spare = -codes.shape[-1] % per_word
    unsigned = (codes.astype(mx.int32) + (1 << bits - 1)).astype(mx.uint32)
    filled = mx.pad(unsigned, [(0, 0)] * (codes.ndim - 1) + [(0, spare)])
    return mx.sum(filled.reshape(*filled.shape[:-1], -1, per_word) << _shifts(bits), axis=-1)


def unpack(words: mx.array, bits: int, count: int) -> mx.array:
    """The first `count` codes (…, count) int8 of the words that `pack` made."""
    codes = words[..., None] >> _shifts(bits) & ((1 << bits) - 1)
    signed = codes.astype(mx.int32) - (1 << bits - 1)
    return signed.reshape(*words.shape[:-1], -1)[..., :count].astype(mx.int8)


def _shifts(bits: int) -> mx.array:
    return mx.arange(32 // bits, dtype=mx.uint32) * bits
