"""Uneven levels per channel or per token, with the largest outliers kept aside: KVQuant (arXiv:2401.18079) without
calibration data.

    x̂ = m + s · level(code),  m and s the mean and the standard deviation of a group's values but its outliers

A group is a channel of 128 tokens (axis=channel: keys, at best before RoPE) or all D channels of a token (axis=token:
values). The k = max(1, round(outliers · n)) of its n values that lie farthest from the mean of all are stored in fp16
with their places. KVQuant fits its levels to calibration data; these are the Lloyd–Max levels of N(0, 1), which need
none. m and s are fp16, and codes are chosen with what is stored. NaN and infinity spread over their group.

What lies far out and is not kept aside is cut off at the outermost level. The first token's key often does: a cache
that keeps it in 16 bits (sink=1) errs less by an order of magnitude (SmolLM2, nuq3 for both sides: 0.049 nats, and 0.69
without).
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from refract.backends.mlx.codecs.base import by_token_group, inverse, over_tokens, spelled
from refract.backends.mlx.codecs.codebooks import Levels, codebook_levels

TOKENS = 128  # of a group where channels are coded


@dataclass(frozen=True, slots=True, kw_only=True)
class NUQ:
    """`bits`-bit codes of groups along `axis`, a share of their values as `outliers`."""

    bits: int
    dim: int
    axis: str = "channel"
    outliers: str = "0"

    @property
    def name(self) -> str:
        """nuq3, nuq3:axis=token:outliers=0.01."""
        return spelled(f"nuq{self.bits}", axis=self.axis, outliers=self.outliers)

    @property
    def tokens(self) -> int:
        """Tokens that are coded together."""
        return TOKENS if self.axis == "channel" else 1

    @property
    def size(self) -> int:
        """n: values in a group."""
        return TOKENS if self.axis == "channel" else self.dim

    @property
    def kept(self) -> int:
        """k: a group's outliers."""
        return outlier_count(self.outliers, self.size)

    @property
    def bits_per_value(self) -> float:
        """b + 32/n, and of every outlier its value and its place, of 8 bits up to 256 places."""
        return self.bits + (32 + self.kept * (16 + place_bits(self.size))) / self.size

    @property
    def code_bits(self) -> tuple[int, ...]:
        """Of a code."""
        return (self.bits,)

    @property
    def levels(self) -> Levels:
        """The 2^b levels of N(0, 1)."""
        return codebook_levels("normal", self.bits, self.dim)

    def encode(self, x: mx.array) -> tuple[mx.array, ...]:
        """Codes (…, n, D) uint8, means and deviations float16 of `x` (…, n, D); with outliers their values float16 and
        places too.

        Means and the like have one entry a token, (…, n, 1) and outliers (…, n, k); or one a group of tokens,
        (…, n / 128, D) and outliers (…, n / 128, k, D).
        """
        groups, axis = self._grouped(x.astype(mx.float32)), self._axis
        aside = self._farthest(groups)
        inside = mx.ones(groups.shape)
        if aside is not None:
            inside = mx.put_along_axis(inside, aside, mx.array(0.0), axis)
        count = float(self.size - self.kept)
        mean = (mx.sum(groups * inside, axis=axis, keepdims=True) / count).astype(mx.float16)
        off = (groups - mean.astype(mx.float32)) * inside
        spread = mx.sqrt(mx.sum(mx.square(off), axis=axis, keepdims=True) / count).astype(mx.float16)
        codes = self.levels.codes((groups - mean.astype(mx.float32)) * inverse(spread.astype(mx.float32)))
        parts = self._ungrouped(codes), self._entry(mean), self._entry(spread)
        if aside is None:
            return parts
        values = mx.take_along_axis(groups, aside, axis).astype(mx.float16)
        return *parts, values, aside.astype(mx.uint8 if place_bits(self.size) == 8 else mx.uint16)

    def decode(self, *parts: mx.array) -> mx.array:
        """Vectors (…, n, D) float32."""
        codes, mean, spread, *aside = parts
        mean, spread = (self._whole(part.astype(mx.float32)) for part in (mean, spread))
        groups = mean + spread * self.levels.values[self._grouped(codes)]
        if aside:
            values, places = aside
            groups = mx.put_along_axis(groups, places.astype(mx.uint32), values.astype(mx.float32), self._axis)
        return self._ungrouped(groups)

    def roundtrip(self, x: mx.array) -> mx.array:
        """`x` (…, n, D), n a multiple of the tokens of a group, through the codes."""
        return self.decode(*self.encode(x)).astype(x.dtype)

    @property
    def _axis(self) -> int:
        return -2 if self.axis == "channel" else -1

    def _grouped(self, x: mx.array) -> mx.array:
        return by_token_group(x, TOKENS) if self.axis == "channel" else x

    def _ungrouped(self, groups: mx.array) -> mx.array:
        return over_tokens(groups) if self.axis == "channel" else groups

    def _entry(self, part: mx.array) -> mx.array:
        return part[..., 0, :] if self.axis == "channel" else part

    def _whole(self, part: mx.array) -> mx.array:
        return part[..., None, :] if self.axis == "channel" else part

    def _farthest(self, groups: mx.array) -> mx.array | None:
        if not self.kept:
            return None
        distance = mx.abs(groups - mx.mean(groups, axis=self._axis, keepdims=True))
        order = mx.argpartition(-distance, self.kept - 1, axis=self._axis)
        return order[..., : self.kept, :] if self.axis == "channel" else order[..., : self.kept]


def outlier_count(share: str, size: int) -> int:
    """The outliers of a group of `size` values: max(1, round(share · size)), none for a share of 0."""
    return max(1, round(float(share) * size)) if float(share) else 0


def place_bits(size: int) -> int:
    """Bits that a place among `size` takes."""
    return 8 if size <= 256 else 16
