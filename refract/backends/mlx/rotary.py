"""What a model's rotary embedding does to each pair of dimensions, read off the embedding itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Complex = npt.NDArray[np.complex128]
Rope = Callable[[Floats, int], Floats]  # (vectors (n, D), position) -> the vectors as rotated there

_FURTHER = 3  # a second position at which the angles have to agree with the first
_CLOSE = 1e-3  # radians between the two, far above float32's rounding


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rotary:
    """Dimension pairs as complex numbers: a token at position p has them multiplied by scale · exp(i · omega · p).

    real, imag (F,) are the dimensions of each pair; a dimension that is not rotated stands alone, with omega 0, itself
    as `imag`, and `paired` 0. omega (F,) in radians a token; scale (F,).
    """

    real: npt.NDArray[np.int64]
    imag: npt.NDArray[np.int64]
    paired: Floats
    omega: Floats
    scale: Floats

    def pairs(self, vectors: npt.NDArray[np.floating]) -> Complex:
        """The vectors (…, D) as complex numbers (…, F)."""
        found: Complex = vectors[..., self.real] + 1j * (vectors[..., self.imag] * self.paired)
        return found

    def flat(self, pairs: Complex) -> Floats:
        """Complex numbers (…, F) as vectors (…, D): the inverse of `pairs`."""
        vectors = np.zeros((*pairs.shape[:-1], int(len(self.real) + self.paired.sum())))
        vectors[..., self.imag] = pairs.imag
        vectors[..., self.real] = pairs.real
        return vectors

    def undone(self, pairs: Complex, positions: npt.NDArray[np.int64]) -> Complex:
        """Pairs (…, n, F) of tokens at `positions` (n,) as they were before their rotation."""
        found: Complex = pairs * np.exp(-1j * positions[:, None] * self.omega) / self.scale
        return found


def read_rotary(rope: Rope, dim: int) -> Rotary:
    """What `rope` does at head dimension `dim`, whichever way it pairs dimensions, scales and skips them.

    Raises: ValueError when it turns no dimension, or not by one angle a token.
    """
    turned, further = rope(np.eye(dim), 1), rope(np.eye(dim), _FURTHER)
    others = turned - np.diag(np.diag(turned))
    partner = np.abs(others).argmax(axis=1)
    sine = others[np.arange(dim), partner]
    first = np.flatnonzero(sine > 0.0)
    alone = np.flatnonzero(sine == 0.0)
    if not len(first):
        raise ValueError("it turns no pair of dimensions")
    if len(first) * 2 + len(alone) != dim or set(partner[first]) & set(first):
        raise ValueError("it does not turn dimensions in pairs")
    omega = np.arctan2(sine[first], turned[first, first])
    later = np.arctan2(further[first, partner[first]], further[first, first])
    if np.abs(np.exp(1j * later) - np.exp(1j * _FURTHER * omega)).max() > _CLOSE:
        raise ValueError("its angles do not grow by the same amount with every token")
    return Rotary(
        real=np.concatenate([first, alone]),
        imag=np.concatenate([partner[first], alone]),
        paired=np.repeat([1.0, 0.0], [len(first), len(alone)]),
        omega=np.concatenate([omega, np.zeros(len(alone))]),
        scale=np.concatenate([np.hypot(sine[first], turned[first, first]), turned[alone, alone]]),
    )
