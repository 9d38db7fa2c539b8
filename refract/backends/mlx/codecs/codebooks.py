"""Codebooks of scalar quantisers, and the nearest level of many values at once.

`codebooks.json` holds, as positive halves in ascending order: "normal", Lloyd–Max levels for N(0, 1), 1 to 8 bits, from
40-digit arithmetic; "sphere", those for a coordinate of a random unit vector in R^d, density ∝ (1 − t²)^((d−3)/2);
"legacy4", the means of 16 bins of equal probability under N(0, 1), a Lloyd iteration that never ran. "polar" holds,
whole, the levels of angles ψ on [0, π/2] with density ∝ sin(2ψ)^(2^(l−1) − 1) for l = 2 … 8.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from refract.errors import KVUnsupportedError

_FEW = 16  # levels up to which comparing with every boundary is the quickest
Doubles = npt.NDArray[np.float64]


@cache
def _tables() -> Mapping[str, Any]:
    tables: Mapping[str, Any] = json.loads(Path(__file__).with_name("codebooks.json").read_text())
    return tables


def centroids(codebook: str, bits: int, dim: int) -> Doubles:
    """All 2^bits levels, ascending, for coordinates of variance 1 (a unit vector times √dim).

    Raises: KVUnsupportedError when there is no sphere codebook for the head dimension.
    """
    tables = _tables()
    if codebook == "sphere" and str(dim) not in tables["sphere"]:
        raise KVUnsupportedError(
            f"codebook=sphere is not tabulated for this model's head dimension {dim}",
            hint=f"use codebook=normal, or a head dimension of {', '.join(tables['sphere'])}",
        )
    table = tables["sphere"][str(dim)] if codebook == "sphere" else tables[codebook]
    half = np.array(table[str(bits)]) * (dim**0.5 if codebook == "sphere" else 1.0)
    return np.concatenate([-half[::-1], half])


def angles(level: int, bits: int) -> Doubles:
    """The 2^bits levels of a polar angle at `level` ≥ 2. Raises: KVUnsupportedError when not tabulated."""
    table = _tables()["polar"].get(str(level), {})
    if str(bits) not in table:
        raise KVUnsupportedError(
            f"polar has no codebook of {bits} bits for angles of level {level}",
            hint="use up to 5 bits from level 2 on, and up to 8 levels",
        )
    return np.array(table[str(bits)])


@dataclass(frozen=True, slots=True, eq=False)
class Levels:
    """The levels of a scalar quantiser and its decision boundaries, half way between neighbours; all float32.

    Many levels are searched through buckets of equal width that hold at most one boundary each, so that a value needs
    one look-up and one comparison; the code is the number of boundaries below the value either way.
    """

    values: mx.array
    boundaries: mx.array
    starts: mx.array | None  # per bucket, the boundaries in buckets before it

    def codes(self, y: mx.array) -> mx.array:
        """The nearest level's index for every value of `y`, uint8; of NaN it is 0."""
        if self.starts is None:
            return mx.sum(y[..., None] > self.boundaries, axis=-1).astype(mx.uint8)
        start = self.starts[_buckets(y, self.boundaries, self.starts.size)]
        return (start + (y > self.boundaries[start])).astype(mx.uint8)


def _buckets(y: mx.array, boundaries: mx.array, count: int) -> mx.array:
    low, high = boundaries[0], boundaries[-1]
    place = (y - low) * (count / (high - low))
    return mx.minimum(mx.where(place > 0, place, 0.0), count - 1).astype(mx.uint32)


def levels(values: Doubles) -> Levels:
    """The quantiser to the nearest of ascending `values`."""
    single = values.astype(np.float32)
    boundaries = mx.array((single[1:] + single[:-1]) / 2)
    if len(values) <= _FEW:
        return Levels(mx.array(single), boundaries, None)
    count = len(values)
    while True:
        places = np.array(_buckets(boundaries, boundaries, count))
        if len(set(places.tolist())) == len(places):
            starts = np.searchsorted(places, np.arange(count)).astype(np.uint32)
            return Levels(mx.array(single), boundaries, mx.array(starts))
        count *= 2


@cache
def codebook_levels(codebook: str, bits: int, dim: int) -> Levels:
    """The quantiser of `centroids`."""
    return levels(centroids(codebook, bits, dim))


@cache
def angle_levels(level: int, bits: int) -> Levels:
    """The quantiser of `angles`."""
    return levels(angles(level, bits))
