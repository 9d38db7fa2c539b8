"""QJL (arXiv:2406.03482): the signs of a random projection, from which inner products are estimated without bias.

Of r in R^D are stored γ = ‖r‖ (fp16) and the signs z of the m coordinates of S r; read back is γ · c · Sᵀ z with

    gauss  S m × D, entries N(0, 1)             c = √(π/2) / m
    orth   m rows of a Haar rotation, m ≤ D     c = 1 / (m · E|u₁|),  E|u₁| = Γ(D/2) / (√π Γ((D+1)/2))

so that E⟨y, r̂⟩ = ⟨y, r⟩ for every y. For gauss the variance is (π/2 · ‖y‖²‖r‖² − ⟨y, r⟩²) / m.

Behind another codec the sketch is of what that leaves (TurboQuant, arXiv:2504.19874, algorithm 2: `prod`). The estimate
is unbiased and noisier than plain codes of as many bits: its squared error is (π/2 − 1/D) times that of the codec it
stands behind for gauss with m = D. NaN and infinity spread over their vector.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import exp, lgamma, pi, sqrt
from typing import Literal

import mlx.core as mx
import numpy as np

from refract.backends.mlx.codecs.base import Codec, group_of
from refract.backends.mlx.codecs.rotations import gaussian, haar
from refract.errors import KVUnsupportedError

Kind = Literal["gauss", "orth"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sketch:
    """`count` (m) signs of a vector of `dim` (D) values and its norm."""

    kind: Kind
    dim: int
    count: int
    seed: int = 0

    @property
    def bits_per_value(self) -> float:
        """(m + 16) / D."""
        return (self.count + 16) / self.dim

    @property
    def constant(self) -> float:
        """c of the estimate."""
        if self.kind == "gauss":
            return sqrt(pi / 2) / self.count
        mean = exp(lgamma(self.dim / 2) - lgamma((self.dim + 1) / 2)) / sqrt(pi)
        return 1.0 / (self.count * mean)

    def encode(self, r: mx.array) -> tuple[mx.array, mx.array]:
        """Signs (…, m) uint8, 1 for ≥ 0, and norms (…, 1) float16 of `r` (…, D) float32."""
        norms = mx.sqrt(mx.sum(mx.square(r), axis=-1, keepdims=True))
        return (r @ projection(self).T >= 0).astype(mx.uint8), norms.astype(mx.float16)

    def decode(self, signs: mx.array, norms: mx.array) -> mx.array:
        """The estimate (…, D) float32."""
        spread = (2.0 * signs.astype(mx.float32) - 1.0) @ projection(self)
        return spread * (norms.astype(mx.float32) * self.constant)


@cache
def projection(sketch: Sketch) -> mx.array:
    """S (m, D) float32, from the seed. Raises: KVUnsupportedError for more orthogonal rows than dimensions."""
    dim, count = sketch.dim, sketch.count
    if sketch.kind == "gauss":
        return mx.array(gaussian(sketch.seed, dim, "qjl", (count, dim)).astype(np.float32))
    if count > dim:
        raise KVUnsupportedError(
            f"qjl=orth:m={count} needs as many orthogonal directions, and this model's head dimension is {dim}",
            hint=f"use m={dim} or less, or qjl=gauss",
        )
    return mx.array(haar(dim, sketch.seed ^ 0x514A4C)[:count].astype(np.float32))  # another rotation than the codec's


@dataclass(frozen=True, slots=True, kw_only=True)
class Sketched:
    """A codec, and a sketch of what it leaves of a vector. Without a codec the sketch is of the vector itself."""

    codec: Codec | None
    sketch: Sketch
    name: str  # as the catalogue spells the format

    @property
    def bits_per_value(self) -> float:
        """Those of the codec and of the sketch."""
        return (self.codec.bits_per_value if self.codec else 0.0) + self.sketch.bits_per_value

    @property
    def tokens(self) -> int:
        """Those of the codec."""
        return group_of(self.codec) if self.codec else 1

    def encode(self, x: mx.array) -> tuple[mx.array, ...]:
        """What the codec stores of `x` (…, D), then the signs (…, m) and norms (…, 1) of the residual."""
        x = x.astype(mx.float32)
        if self.codec is None:
            return self.sketch.encode(x)
        parts = self.codec.encode(x)
        return *parts, *self.sketch.encode(x - self.codec.decode(*parts).astype(mx.float32))

    def decode(self, *parts: mx.array) -> mx.array:
        """Vectors (…, D) float32."""
        *own, signs, norms = parts
        estimate = self.sketch.decode(signs, norms)
        return estimate if self.codec is None else self.codec.decode(*own).astype(mx.float32) + estimate

    def roundtrip(self, x: mx.array) -> mx.array:
        """`x` (…, D) through codes and signs."""
        return self.decode(*self.encode(x)).astype(x.dtype)
