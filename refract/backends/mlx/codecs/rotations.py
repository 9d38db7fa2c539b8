"""Orthogonal matrices that spread a vector's energy evenly over its coordinates.

A dense product with a precomputed D × D matrix is one operation instead of the dozen a fast transform takes, and at
head dimensions up to 256 it costs less. `mx.hadamard_transform` is not used at all: on CPU it corrupts memory for some
sizes that are no power of two.
"""

from __future__ import annotations

import hashlib
import math
from functools import cache

import mlx.core as mx
import numpy as np
import numpy.typing as npt


def _stream(seed: int, dim: int, purpose: str, count: int) -> bytes:
    return hashlib.shake_256(f"refract/{purpose}/{seed}/{dim}".encode()).digest(count)


def _signs(seed: int, dim: int, purpose: str) -> npt.NDArray[np.float64]:
    bits = np.unpackbits(np.frombuffer(_stream(seed, dim, purpose, -(-dim // 8)), np.uint8))[:dim]
    return 1.0 - 2.0 * bits.astype(np.float64)


def hadamard(dim: int) -> npt.NDArray[np.float64]:
    """The Sylvester matrix of ±1, (dim, dim), for a power of two. Raises: ValueError otherwise."""
    if dim < 1 or dim & (dim - 1):
        raise ValueError(f"a Hadamard matrix of size {dim} is not a power of two")
    matrix = np.ones((1, 1))
    while len(matrix) < dim:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix


def signed_hadamard(dim: int, seed: int) -> npt.NDArray[np.float64]:
    """y = R x with R = H diag(±1) / √dim: the randomised Walsh–Hadamard transform."""
    return hadamard(dim) * _signs(seed, dim, "signs") / math.sqrt(dim)


def haar(dim: int, seed: int) -> npt.NDArray[np.float64]:
    """A Haar-distributed orthogonal matrix: the Q of a Gaussian matrix, columns signed by R's diagonal."""
    raw = np.frombuffer(_stream(seed, dim, "haar", 16 * dim * dim), np.uint64).reshape(2, dim, dim)
    uniform = (raw.astype(np.float64) + 0.5) / 2.0**64
    gaussian = np.sqrt(-2.0 * np.log(uniform[0])) * np.cos(2.0 * np.pi * uniform[1])
    q, r = np.linalg.qr(gaussian)
    return q * np.sign(np.diag(r))


@cache
def rotation(dim: int, seed: int) -> mx.array:
    """R as (dim, dim) float32: the signed Hadamard matrix for a power of two, a Haar matrix for other sizes."""
    is_power_of_two = dim & (dim - 1) == 0
    matrix = signed_hadamard(dim, seed) if is_power_of_two else haar(dim, seed)
    return mx.array(matrix.astype(np.float32))
