"""8-bit floating point: e4m3 (bias 7, largest 448, no infinity) and e5m2 (bias 15, largest 57344), OCP OFP8 v1.0.

Rounding is to nearest even; magnitudes above the largest become the largest, as attention kernels store them. NaN
stays NaN; infinity stays infinity in e5m2 and becomes NaN in e4m3. With scale=head a vector is stored as
x · largest / max|x| beside max|x| in fp16.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from refract.backends.mlx.codecs.base import inverse, spelled

_MANTISSA = {"e4m3": 3, "e5m2": 2}
_BIAS = {"e4m3": 7, "e5m2": 15}
_LARGEST = {"e4m3": 448.0, "e5m2": 57344.0}
_NAN = 0x7F


def table(kind: str) -> npt.NDArray[np.float32]:
    """The values of all 256 codes."""
    mantissa, bias = _MANTISSA[kind], _BIAS[kind]
    codes = np.arange(128)
    exponent, fraction = codes >> mantissa, (codes & (1 << mantissa) - 1) / (1 << mantissa)
    values = np.where(exponent == 0, fraction * 2.0 ** (1 - bias), (1 + fraction) * 2.0 ** (exponent - bias))
    if kind == "e5m2":
        values[0x7C], values[0x7D:] = np.inf, np.nan
    else:
        values[_NAN] = np.nan
    return np.concatenate([values, -values]).astype(np.float32)


@cache
def _table(kind: str) -> mx.array:
    return mx.array(table(kind))


@cache
def _smallest_normal(kind: str) -> float:
    return float(2.0 ** (1 - _BIAS[kind]))


def to_codes(x: mx.array, kind: str) -> mx.array:
    """The codes of float32 `x`, uint8."""
    mantissa, bias = _MANTISSA[kind], _BIAS[kind]
    magnitude = mx.abs(x)
    bits = mx.minimum(magnitude, _LARGEST[kind]).view(mx.uint32)
    drop = 23 - mantissa
    rounded = (bits + ((bits >> drop) & 1) + ((1 << drop - 1) - 1)) >> drop
    normal = rounded - ((127 - bias) << mantissa)
    codes = mx.where(magnitude < _smallest_normal(kind), _subnormal(magnitude, drop - bias + 1), normal)
    special = mx.where(mx.isnan(x), _NAN, mx.where(mx.isinf(x), 0x7C if kind == "e5m2" else _NAN, codes))
    return (special.astype(mx.uint32) | (x.view(mx.uint32) >> 24 & 0x80)).astype(mx.uint8)


def _subnormal(magnitude: mx.array, exponent: int) -> mx.array:
    """Multiples of the smallest value: adding a power of two whose last bit is worth that much rounds to even."""
    anchor = mx.array(2.0**exponent, dtype=mx.float32)
    return (magnitude + anchor).view(mx.uint32) - anchor.view(mx.uint32)


@dataclass(frozen=True, slots=True, kw_only=True)
class FP8:
    """One code of 8 bits a value; with scale=head, one fp16 magnitude a vector."""

    kind: str
    dim: int
    scale: str = "none"

    @property
    def name(self) -> str:
        """fp8_e4m3, fp8_e5m2:scale=head."""
        return spelled(f"fp8_{self.kind}", scale=self.scale)

    @property
    def bits_per_value(self) -> float:
        """8, or 8 + 16/D with a scale."""
        return 8 + (16 / self.dim if self.scale == "head" else 0.0)

    def encode(self, x: mx.array) -> tuple[mx.array, ...]:
        """Codes (…, D) uint8 of `x` (…, D); with a scale, largest magnitudes (…, 1) float16 too."""
        x = x.astype(mx.float32)
        if self.scale == "none":
            return (to_codes(x, self.kind),)
        peaks = mx.max(mx.abs(x), axis=-1, keepdims=True).astype(mx.float16)
        return to_codes(x * (_LARGEST[self.kind] * inverse(peaks.astype(mx.float32))), self.kind), peaks

    def decode(self, *parts: mx.array) -> mx.array:
        """The codes' values, times max|x| / largest with a scale; float32."""
        values = _table(self.kind)[parts[0]]
        return values if self.scale == "none" else values * (parts[1].astype(mx.float32) / _LARGEST[self.kind])

    def roundtrip(self, x: mx.array) -> mx.array:
        """`x` (…, D) through the codes."""
        return self.decode(*self.encode(x)).astype(x.dtype)
