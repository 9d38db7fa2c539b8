"""Asymmetric round-to-nearest over the range of a group of channels: KIVI (arXiv:2402.02750) and vLLM's values.

    m = min x,  d = (max x − m) / (2^b − 1),  code = round((x − m) / d),  x̂ = code · d + m

per token and group of g channels; d and m are stored in fp16, and codes are chosen with what is stored.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from refract.backends.mlx.codecs.base import grouped, inverse, spelled, ungrouped


@dataclass(frozen=True, slots=True, kw_only=True)
class MinMax:
    """`bits`-bit codes with a scale and a minimum per `group` channels of a token; group "head" is all D."""

    bits: int
    dim: int
    group: str = "32"

    @property
    def name(self) -> str:
        """minmax2, minmax4:g=head."""
        return spelled(f"minmax{self.bits}", g=self.group)

    @property
    def size(self) -> int:
        """Channels in a group."""
        return self.dim if self.group == "head" else int(self.group)

    @property
    def bits_per_value(self) -> float:
        """b + 32/g."""
        return self.bits + 32 / self.size

    @property
    def code_bits(self) -> tuple[int, ...]:
        """Of a code."""
        return (self.bits,)

    def encode(self, x: mx.array) -> tuple[mx.array, ...]:
        """Codes (…, D / g, g) uint8, scales and minima (…, D / g, 1) float16 of `x` (…, D)."""
        groups, top = grouped(x, self.size), float((1 << self.bits) - 1)
        low = mx.min(groups, axis=-1, keepdims=True)
        scale = ((mx.max(groups, axis=-1, keepdims=True) - low) / top).astype(mx.float16)
        low = low.astype(mx.float16)
        codes = mx.round((groups - low.astype(mx.float32)) * inverse(scale.astype(mx.float32)))
        return mx.minimum(mx.maximum(codes, 0.0), top).astype(mx.uint8), scale, low

    def decode(self, *parts: mx.array) -> mx.array:
        """code · d + m (…, D), float32."""
        codes, scales, lows = (part.astype(mx.float32) for part in parts)
        return ungrouped(codes * scales + lows)

    def roundtrip(self, x: mx.array) -> mx.array:
        """`x` (…, D), D a multiple of the group, through the codes."""
        return self.decode(*self.encode(x)).astype(x.dtype)
