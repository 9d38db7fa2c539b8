"""PolarQuant (arXiv:2502.02617): rotate, then store a vector as angles and one radius per 2^L values.

Neighbouring coordinates become a radius and an angle in [0, 2π) (level 1); neighbouring radii become a radius and an
angle in [0, π/2] (levels 2 … L), whose density after a random rotation is ∝ sin(2ψ)^(2^(l−1) − 1). Each level has its
own number of bits; the radii left at the top are fp16. Level 1 and angles=uniform round to the middles of equal arcs of
the whole circle, angles=opt to the Lloyd–Max levels of that density. NaN and infinity spread over their 2^L values.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import pi

import mlx.core as mx

from refract.backends.mlx.codecs.base import spelled
from refract.backends.mlx.codecs.codebooks import angle_levels


@dataclass(frozen=True, slots=True, kw_only=True)
class Polar:
    """`bits[l − 1]`-bit angles at level l; to be used behind a rotation."""

    bits: tuple[int, ...] = (4, 2, 2, 2)
    angles: str = "opt"

    @property
    def name(self) -> str:
        """polar, polar:levels=3:bits=4-3-2:angles=uniform."""
        return spelled("polar", levels=str(len(self.bits)), bits="-".join(map(str, self.bits)), angles=self.angles)

    @property
    def bits_per_value(self) -> float:
        """(Σ b_l · 2^(L−l) + 16) / 2^L."""
        levels = len(self.bits)
        return float(sum(b << levels - i for i, b in enumerate(self.bits, 1)) + 16) / (1 << levels)

    @property
    def code_bits(self) -> tuple[int, ...]:
        """Of an angle's code at every level."""
        return self.bits

    def encode(self, x: mx.array) -> tuple[mx.array, ...]:
        """Codes of level l (…, D / 2^l) uint8 for l = 1 … L, then radii (…, D / 2^L) float16, of `x` (…, D)."""
        radii, codes = x.astype(mx.float32), []
        for level, bits in enumerate(self.bits, 1):
            pairs = radii.reshape(*radii.shape[:-1], -1, 2)
            first, second = pairs[..., 0], pairs[..., 1]
            codes.append(self._codes(mx.arctan2(second, first), level, bits))
            radii = mx.sqrt(first * first + second * second)
        return *codes, radii.astype(mx.float16)

    def decode(self, *parts: mx.array) -> mx.array:
        """Vectors (…, D) float32, from the top level down."""
        *codes, radii = parts
        values = radii.astype(mx.float32)
        for level in range(len(self.bits), 0, -1):
            angle = self._angles(codes[level - 1], level, self.bits[level - 1])
            pairs = mx.stack([values * mx.cos(angle), values * mx.sin(angle)], axis=-1)
            values = pairs.reshape(*pairs.shape[:-2], -1)
        return values

    def roundtrip(self, x: mx.array) -> mx.array:
        """`x` (…, D), D a multiple of 2^L, through angles and radii."""
        return self.decode(*self.encode(x)).astype(x.dtype)

    def _codes(self, angle: mx.array, level: int, bits: int) -> mx.array:
        if level > 1 and self.angles == "opt":
            return angle_levels(level, bits).codes(angle)
        arcs = mx.floor((angle + pi) * (2**bits / (2 * pi)))
        return mx.minimum(mx.where(arcs > 0, arcs, 0.0), 2**bits - 1).astype(mx.uint8)

    def _angles(self, codes: mx.array, level: int, bits: int) -> mx.array:
        if level > 1 and self.angles == "opt":
            return angle_levels(level, bits).values[codes]
        return (codes.astype(mx.float32) + 0.5) * (2 * pi / 2**bits) - pi
