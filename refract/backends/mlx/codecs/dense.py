"""f32, f16 and bf16: a cast, nothing compressed below 16 bits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import mlx.core as mx

_DTYPES: Mapping[str, tuple[mx.Dtype, int]] = {
    "f32": (mx.float32, 32),
    "f16": (mx.float16, 16),
    "bf16": (mx.bfloat16, 16),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Dense:
    """Values kept in a floating-point type, rounded to nearest even by the cast."""

    name: str

    @property
    def bits_per_value(self) -> float:
        """16 or 32."""
        return _DTYPES[self.name][1]

    def encode(self, x: mx.array) -> tuple[mx.array, ...]:
        """`x` (…, D) in the type."""
        return (x.astype(_DTYPES[self.name][0]),)

    def decode(self, *parts: mx.array) -> mx.array:
        """The stored vectors (…, D), float32."""
        return parts[0].astype(mx.float32)

    def roundtrip(self, x: mx.array) -> mx.array:
        """`x` after a cast to the type and back."""
        dtype = _DTYPES[self.name][0]
        return x if x.dtype == dtype else x.astype(dtype).astype(x.dtype)
