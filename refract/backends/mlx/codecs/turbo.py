"""TurboQuant (arXiv:2504.19874, the MSE variant): rotate, then round every coordinate to a Lloyd–Max code.

For x in R^D: y = √D · R x / ‖x‖ is close to N(0, 1) in every coordinate; each is replaced by the nearest of 2^b
centroids. With c the decoded direction Rᵀ ŷ / √D, one fp16 number per vector rescales it:

    none     ‖x‖                  the paper's own
    matched  ‖x‖ / ‖c‖            restores the norm exactly, as every deployed port does
    eden     ‖x‖² / ⟨x, c⟩        unbiased inner products (EDEN, DRIVE)
    ls       ⟨x, c⟩ / ‖c‖²        the least squared error

NaN and infinity spread over their vector. Norms below 3e-8 are stored as 0, norms above 65504 as infinity.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import mlx.core as mx

from refract.backends.mlx.codecs.base import spelled
from refract.backends.mlx.codecs.codebooks import Levels, codebook_levels
from refract.backends.mlx.codecs.rotations import rotate, unrotate

# (‖x‖, ‖c‖, ⟨x, c⟩ / ‖x‖) -> scale
_SCALES: Mapping[str, Callable[[mx.array, mx.array, mx.array], mx.array]] = {
    "none": lambda norm, length, dot: norm,
    "matched": lambda norm, length, dot: norm / length,
    "eden": lambda norm, length, dot: norm / mx.where(dot == 0, 1.0, dot),
    "ls": lambda norm, length, dot: norm * dot / mx.square(length),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Turbo:
    """b-bit codes of the rotated direction and one fp16 scale per vector."""

    bits: int
    dim: int
    codebook: str = "normal"
    scale: str = "matched"
    rotation: str = "auto"
    seed: int = 0

    @property
    def name(self) -> str:
        """The canonical text: turbo3, turbo4:codebook=sphere:scale=ls."""
        return spelled(f"turbo{self.bits}", codebook=self.codebook, scale=self.scale)

    @property
    def bits_per_value(self) -> float:
        """b + 16/D."""
        return self.bits + 16 / self.dim

    @property
    def code_bits(self) -> tuple[int, ...]:
        """Of a code."""
        return (self.bits,)

    @property
    def levels(self) -> Levels:
        """The 2^b centroids and their boundaries."""
        return codebook_levels(self.codebook, self.bits, self.dim)

    def encode(self, x: mx.array) -> tuple[mx.array, ...]:
        """Codes (…, D) uint8 and scales (…, 1) float16 of `x` (…, D)."""
        norms, unit = normalised(x.astype(mx.float32))
        rotated = rotate(unit, self.rotation, self.seed) * self.dim**0.5
        codes = self.levels.codes(rotated)
        chosen = self.levels.values[codes]
        length = mx.sqrt(mx.sum(mx.square(chosen), axis=-1, keepdims=True) / self.dim)
        dot = mx.sum(rotated * chosen, axis=-1, keepdims=True) / self.dim
        return codes, _SCALES[self.scale](norms, length, dot).astype(mx.float16)

    def decode(self, *parts: mx.array) -> mx.array:
        """Vectors (…, D) float32 of codes and scales."""
        codes, scales = parts
        return self.scaled(self.levels.values[codes], scales)

    def scaled(self, chosen: mx.array, scales: mx.array) -> mx.array:
        """Vectors (…, D) float32 of the levels that were chosen and scales."""
        direction = unrotate(chosen, self.rotation, self.seed)
        return direction * (scales.astype(mx.float32) / self.dim**0.5)

    def roundtrip(self, x: mx.array) -> mx.array:
        """`x` (…, D) through codes and scales; the zero vector stays zero."""
        return self.decode(*self.encode(x)).astype(x.dtype)


def normalised(x: mx.array) -> tuple[mx.array, mx.array]:
    """Norms (…, 1) and unit vectors of `x` (…, D), through the largest magnitude so that no square overflows."""
    peak = mx.max(mx.abs(x), axis=-1, keepdims=True)
    shrunk = x / mx.where(peak == 0, 1.0, peak)
    length = mx.sqrt(mx.sum(mx.square(shrunk), axis=-1, keepdims=True))
    return length * peak, shrunk / mx.where(length == 0, 1.0, length)
