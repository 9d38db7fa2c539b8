"""A vector partly in polar and partly in Cartesian codes, behind a rotation that makes all coordinates alike.

The first D' = 16 · round(ratio · D / 16) coordinates are stored as `Polar` with b-bit angles at the first level and
max(1, b − 2)-bit ones at the three above, the others as b-bit `Turbo` codes with a norm of their own. No paper defines
the mix; the two halves are those of their own files, and the error is the mean of theirs, weighted by coordinates. It
exists to be measured beside either: at equal bits polar codes lose to Lloyd–Max ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from refract.backends.mlx.codecs.base import spelled
from refract.backends.mlx.codecs.polar import Polar
from refract.backends.mlx.codecs.turbo import Turbo

LEVELS = 4
_GROUP = 1 << LEVELS  # coordinates that share a radius


def polar_share(ratio: float, dim: int) -> int:
    """D': how many of `dim` coordinates are polar, a multiple of 16."""
    return min(dim // _GROUP, round(ratio * dim / _GROUP)) * _GROUP


def angle_bits(bits: int) -> tuple[int, ...]:
    """The bits of each level's angles."""
    return (bits, *[max(1, bits - 2)] * (LEVELS - 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridPC:
    """`split` polar coordinates and `dim` − `split` plain ones; to be used behind a rotation."""

    ratio: str
    bits: int
    dim: int

    @property
    def name(self) -> str:
        """hybridpc, hybridpc:ratio=0.5:bits=3."""
        return spelled("hybridpc", ratio=self.ratio, bits=str(self.bits))

    @property
    def split(self) -> int:
        """D'."""
        return polar_share(float(self.ratio), self.dim)

    @property
    def polar(self) -> Polar:
        """The codec of the first D' coordinates."""
        return Polar(bits=angle_bits(self.bits))

    @property
    def plain(self) -> Turbo:
        """The codec of the others."""
        return Turbo(bits=self.bits, dim=self.dim - self.split, rotation="none")

    @property
    def bits_per_value(self) -> float:
        """The mean over all coordinates."""
        rest = self.dim - self.split
        stored = self.split * self.polar.bits_per_value + (rest * self.plain.bits_per_value if rest else 0.0)
        return stored / self.dim

    @property
    def code_bits(self) -> tuple[int, ...]:
        """Of an angle's code at every level, none for radii, and of a plain code."""
        return (*((*self.polar.bits, 0) if self.split else ()), self.bits)

    def encode(self, x: mx.array) -> tuple[mx.array, ...]:
        """What `Polar` stores of `x[…, :D']`, then what `Turbo` stores of the rest."""
        parts = self.polar.encode(x[..., : self.split]) if self.split else ()
        return parts + (self.plain.encode(x[..., self.split :]) if self.split < self.dim else ())

    def decode(self, *parts: mx.array) -> mx.array:
        """Vectors (…, D) float32."""
        count = LEVELS + 1 if self.split else 0
        halves = [self.polar.decode(*parts[:count])] if self.split else []
        halves += [self.plain.decode(*parts[count:])] if self.split < self.dim else []
        return mx.concatenate(halves, axis=-1)

    def roundtrip(self, x: mx.array) -> mx.array:
        """`x` (…, D) through both halves."""
        return self.decode(*self.encode(x)).astype(x.dtype)
