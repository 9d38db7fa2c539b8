"""KIVI's keys (arXiv:2402.02750): asymmetric round-to-nearest over a channel of several tokens.

    m = min x,  d = (max x − m) / (2^b − 1),  code = round((x − m) / d),  x̂ = code · d + m

per channel and group of g tokens; d and m are stored in fp16, and codes are chosen with what is stored. Only whole
groups are coded: a cache keeps the tokens of the last, unfinished one in 16 bits. A channel that is large in every
token costs the others nothing, which is what keys with outlier channels need. NaN and infinity spread over the channel
of their group.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from refract.backends.mlx.codecs.base import by_token_group, inverse, over_tokens, spelled


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelMinMax:
    """`bits`-bit codes with a scale and a minimum per channel of `tokens` tokens."""

    bits: int
    tokens: int = 32

    @property
    def name(self) -> str:
        """minmax2:axis=channel, minmax4:axis=channel:g=64."""
        return spelled(f"minmax{self.bits}", axis="channel", g=str(self.tokens))

    @property
    def bits_per_value(self) -> float:
        """b + 32/g."""
        return self.bits + 32 / self.tokens

    @property
    def code_bits(self) -> tuple[int, ...]:
        """Of a code."""
        return (self.bits,)

    def encode(self, x: mx.array) -> tuple[mx.array, ...]:
        """Codes (…, n, D) uint8, scales and minima (…, n / g, D) float16 of `x` (…, n, D), n a multiple of g."""
        groups, top = by_token_group(x, self.tokens), float((1 << self.bits) - 1)
        low = mx.min(groups, axis=-2, keepdims=True)
        scale = ((mx.max(groups, axis=-2, keepdims=True) - low) / top).astype(mx.float16)
        low = low.astype(mx.float16)
        codes = mx.round((groups - low.astype(mx.float32)) * inverse(scale.astype(mx.float32)))
        codes = mx.minimum(mx.maximum(codes, 0.0), top).astype(mx.uint8)
        return over_tokens(codes), scale[..., 0, :], low[..., 0, :]

    def decode(self, *parts: mx.array) -> mx.array:
        """code · d + m (…, n, D), float32."""
        codes, scales, lows = (part.astype(mx.float32) for part in parts)
        return over_tokens(by_token_group(codes, self.tokens) * scales[..., None, :] + lows[..., None, :])

    def roundtrip(self, x: mx.array) -> mx.array:
        """`x` (…, n, D), n a multiple of the group, through the codes."""
        return self.decode(*self.encode(x)).astype(x.dtype)
