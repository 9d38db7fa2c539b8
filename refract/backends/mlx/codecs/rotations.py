"""Orthogonal matrices that spread a vector's energy over its coordinates, and a codec behind one of them.

    auto      wht, or haar where the size is no power of two
    wht       H diag(±1) / √D, the randomised Walsh–Hadamard transform
    wht64     the same in blocks of 64
    haar      uniform over all rotations
    iso       blocks of 4 as quaternions, v → p v q̄ with random unit quaternions p, q (IsoQuant, arXiv:2603.28430)
    iso_fast  v → p v
    rotor     blocks of 3 turned in space (RotorQuant); one or two coordinates left over stay as they are

The last three mix only within their blocks and cannot spread a spike over D: controls, not recommendations.

A dense product with a precomputed D × D matrix is one operation instead of the dozen a fast transform takes, and at
head dimensions up to 256 it costs less. `mx.hadamard_transform` is not used at all: on CPU it corrupts memory for some
sizes that are no power of two.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod, sqrt

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from refract.backends.mlx.codecs.base import Codec, code_bits_of, group_of
from refract.errors import KVUnsupportedError

Matrix = npt.NDArray[np.float64]


def _stream(seed: int, dim: int, purpose: str, count: int) -> bytes:
    return hashlib.shake_256(f"refract/{purpose}/{seed}/{dim}".encode()).digest(count)


def _signs(seed: int, dim: int, purpose: str) -> Matrix:
    bits = np.unpackbits(np.frombuffer(_stream(seed, dim, purpose, -(-dim // 8)), np.uint8))[:dim]
    return 1.0 - 2.0 * bits.astype(np.float64)


def gaussian(seed: int, dim: int, purpose: str, shape: Sequence[int]) -> Matrix:
    """Standard normal numbers of this shape, always the same for a seed, dimension and purpose."""
    raw = np.frombuffer(_stream(seed, dim, purpose, 16 * prod(shape)), np.uint64).reshape(2, *shape)
    uniform = (raw.astype(np.float64) + 0.5) / 2.0**64
    normal: Matrix = np.sqrt(-2.0 * np.log(uniform[0])) * np.cos(2.0 * np.pi * uniform[1])
    return normal


def hadamard(dim: int) -> Matrix:
    """The Sylvester matrix of ±1, (dim, dim), for a power of two. Raises: ValueError otherwise."""
    if dim < 1 or dim & (dim - 1):
        raise ValueError(f"a Hadamard matrix of size {dim} is not a power of two")
    matrix = np.ones((1, 1))
    while len(matrix) < dim:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix


def signed_hadamard(dim: int, seed: int) -> Matrix:
    """y = R x with R = H diag(±1) / √dim: the randomised Walsh–Hadamard transform."""
    return hadamard(dim) * _signs(seed, dim, "signs") / sqrt(dim)


def signed_hadamard_64(dim: int, seed: int) -> Matrix:
    """Blocks of 64: H₆₄ diag(±1) / 8 each, every coordinate with a sign of its own."""
    return _blocks([hadamard(64) / 8] * (dim // 64), dim) * _signs(seed, dim, "signs")


def haar(dim: int, seed: int) -> Matrix:
    """A Haar-distributed orthogonal matrix: the Q of a Gaussian matrix, columns signed by R's diagonal."""
    q, r = np.linalg.qr(gaussian(seed, dim, "haar", (dim, dim)))
    turned: Matrix = q * np.sign(np.diag(r))
    return turned


def iso(dim: int, seed: int) -> Matrix:
    """Blocks of 4: v → p v q̄."""
    left, right = (_quaternions(seed, dim, purpose, dim // 4) for purpose in ("iso left", "iso right"))
    conjugates = right * np.array([1, -1, -1, -1])
    return _blocks([_times(p) @ _by(q) for p, q in zip(left, conjugates, strict=True)], dim)


def iso_fast(dim: int, seed: int) -> Matrix:
    """Blocks of 4: v → p v."""
    return _blocks([_times(p) for p in _quaternions(seed, dim, "iso left", dim // 4)], dim)


def rotor(dim: int, seed: int) -> Matrix:
    """Blocks of 3: v → p v p̄, which turns the imaginary part and leaves the real one."""
    turns = _quaternions(seed, dim, "rotor", dim // 3)
    return _blocks([(_times(p) @ _by(p * np.array([1, -1, -1, -1])))[1:, 1:] for p in turns], dim)


def _quaternions(seed: int, dim: int, purpose: str, count: int) -> Matrix:
    raw = gaussian(seed, dim, purpose, (count, 4))
    unit: Matrix = raw / np.linalg.norm(raw, axis=1, keepdims=True)
    return unit


def _times(p: Matrix) -> Matrix:
    """The matrix of v → p v."""
    a, b, c, d = p
    return np.array([[a, -b, -c, -d], [b, a, -d, c], [c, d, a, -b], [d, -c, b, a]])


def _by(q: Matrix) -> Matrix:
    """The matrix of v → v q."""
    a, b, c, d = q
    return np.array([[a, -b, -c, -d], [b, a, d, -c], [c, -d, a, b], [d, c, -b, a]])


def _blocks(blocks: Sequence[Matrix], dim: int) -> Matrix:
    """The block-diagonal matrix, (dim, dim), the identity where the blocks end."""
    matrix, start = np.eye(dim), 0
    for block in blocks:
        end = start + len(block)
        matrix[start:end, start:end] = block
        start = end
    return matrix


_KINDS: Mapping[str, tuple[Callable[[int, int], Matrix], Callable[[int], bool], str]] = {
    "wht": (signed_hadamard, lambda dim: dim & (dim - 1) == 0, "a power of two"),
    "wht64": (signed_hadamard_64, lambda dim: dim % 64 == 0, "a multiple of 64"),
    "haar": (haar, lambda dim: True, ""),
    "iso": (iso, lambda dim: dim % 4 == 0, "a multiple of 4"),
    "iso_fast": (iso_fast, lambda dim: dim % 4 == 0, "a multiple of 4"),
    "rotor": (rotor, lambda dim: dim >= 3, "3 or more"),
}


def kind_of(kind: str, dim: int) -> str:
    """The kind that "auto" stands for at head dimension `dim`, any other as it is."""
    if kind != "auto":
        return kind
    return "wht" if _KINDS["wht"][1](dim) else "haar"


@cache
def rotation(dim: int, seed: int, kind: str = "auto") -> mx.array:
    """R as (dim, dim) float32.

    Raises: KVUnsupportedError when the kind does not exist for this head dimension.
    """
    kind = kind_of(kind, dim)
    build, fits, wanted = _KINDS[kind]
    if not fits(dim):
        raise KVUnsupportedError(
            f"rot={kind} needs a head dimension that is {wanted}, and this model's is {dim}",
            hint="use rot=haar, which takes any head dimension",
        )
    return mx.array(build(dim, seed).astype(np.float32))


def rotate(x: mx.array, kind: str, seed: int) -> mx.array:
    """R x for every vector of `x` (…, D) float32; `x` itself for none."""
    return x if kind == "none" else x @ rotation(x.shape[-1], seed, kind).T


def unrotate(y: mx.array, kind: str, seed: int) -> mx.array:
    """Rᵀ y for every vector of `y` (…, D) float32; `y` itself for none."""
    return y if kind == "none" else y @ rotation(y.shape[-1], seed, kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotated:
    """A codec that stores R x instead of x; nothing more is stored, R comes from the seed."""

    codec: Codec
    rotation: str
    seed: int = 0

    @property
    def name(self) -> str:
        """That of the codec: a rotation is a modifier, no part of the format."""
        return self.codec.name

    @property
    def bits_per_value(self) -> float:
        """Those of the codec."""
        return self.codec.bits_per_value

    @property
    def code_bits(self) -> tuple[int, ...]:
        """Those of the codec."""
        return code_bits_of(self.codec)

    @property
    def tokens(self) -> int:
        """Those of the codec."""
        return group_of(self.codec)

    def encode(self, x: mx.array) -> tuple[mx.array, ...]:
        """What the codec stores of R x."""
        return self.codec.encode(rotate(x.astype(mx.float32), self.rotation, self.seed))

    def decode(self, *parts: mx.array) -> mx.array:
        """Rᵀ of what the codec decodes, float32."""
        return unrotate(self.codec.decode(*parts).astype(mx.float32), self.rotation, self.seed)

    def roundtrip(self, x: mx.array) -> mx.array:
        """`x` (…, D) rotated, through the codec, and back."""
        kept = self.codec.roundtrip(rotate(x.astype(mx.float32), self.rotation, self.seed))
        return unrotate(kept, self.rotation, self.seed).astype(x.dtype)
