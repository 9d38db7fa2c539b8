"""MLX's own group quantisation, the format of `mlx_lm.models.cache.QuantizedKVCache`."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from refract.backends.mlx.codecs.base import spelled


@dataclass(frozen=True, slots=True, kw_only=True)
class Affine:
    """`bits`-bit codes with a scale and a bias of 16 bits per `group` values, bit-equal to `mx.quantize`.

    A model that runs in float32 has its keys and values cast to float16 first, since a scale of 32 bits is not what
    anybody stores. MLX turns NaN into some finite code; here its group's scale becomes NaN, so that a broken model
    stays visible.
    """

    bits: int
    group: int = 64

    @property
    def name(self) -> str:
        """The canonical text: affine8, affine4:g=32."""
        return spelled(f"affine{self.bits}", g=str(self.group))

    @property
    def bits_per_value(self) -> float:
        """b + 32/g."""
        return self.bits + 32 / self.group

    def encode(self, x: mx.array) -> tuple[mx.array, ...]:
        """Packed codes (…, D · b / 32) uint32, scales and biases (…, D / g) of `x` (…, D), D a multiple of g."""
        half = x.astype(mx.float16) if x.dtype == mx.float32 else x
        codes, scales, biases = mx.quantize(half, group_size=self.group, bits=self.bits)
        broken = mx.any(mx.isnan(half.reshape(*half.shape[:-1], -1, self.group)), axis=-1)
        return codes, mx.where(broken, float("nan"), scales).astype(scales.dtype), biases

    def decode(self, *parts: mx.array) -> mx.array:
        """scale · code + bias (…, D), in the dtype of the scales."""
        codes, scales, biases = parts
        return mx.dequantize(codes, scales, biases, group_size=self.group, bits=self.bits)

    def roundtrip(self, x: mx.array) -> mx.array:
        """`x` (…, D), D a multiple of the group, through `mx.quantize` and `mx.dequantize`."""
        return self.decode(*self.encode(x)).astype(x.dtype)
