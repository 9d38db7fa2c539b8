"""What a KV codec is: a frozen value that knows how its format rounds a tensor and how many bits it stores."""

from __future__ import annotations

from typing import Protocol

import mlx.core as mx

from refract.formats import FORMATS
from refract.kv import Format


class Codec(Protocol):
    """One storage format of keys or of values, for one head dimension.

    One that codes several tokens together has an attribute `tokens`, how many: it is given (…, n, D) with n a multiple
    of it, and each of its parts has either n or n / tokens entries along the axis of tokens.

    Packed caches store the codes in the first parts with as many bits as an attribute `code_bits` says, one number a
    part, 0 for a part that stays as it is; so do all behind those it tells of.
    """

    def __hash__(self) -> int:
        """A codec is a value."""

    @property
    def name(self) -> str:
        """The format's canonical text, as the catalogue spells it."""

    @property
    def bits_per_value(self) -> float:
        """Stored bits per value, scales and norms included."""

    def encode(self, x: mx.array) -> tuple[mx.array, ...]:
        """What is stored of `x` (…, D): codes, one an array element, then scales and the like."""

    def decode(self, *parts: mx.array) -> mx.array:
        """Vectors (…, D) of what `encode` made."""

    def roundtrip(self, x: mx.array) -> mx.array:
        """What reading `x` (…, D) back gives, same shape and dtype; every vector along the last axis on its own.

        NaN and infinity propagate to the vector or block they lie in.
        """


def group_of(codec: Codec) -> int:
    """Tokens that `codec` codes together."""
    return int(getattr(codec, "tokens", 1))


def code_bits_of(codec: Codec) -> tuple[int, ...]:
    """Bits of a code in each of the first parts of `codec`."""
    return tuple(getattr(codec, "code_bits", ()))


def spelled(name: str, **options: str) -> str:
    """The canonical text of the catalogue's format `name` with these options."""
    every = [(option, options.get(option.name, option.default)) for option in FORMATS[name].options]
    return str(Format(name=name, options=tuple((o.name, value) for o, value in every if value != o.default)))


def inverse(scale: mx.array) -> mx.array:
    """1 / scale, and 0 where the scale is 0."""
    return mx.where(scale == 0, 0.0, 1.0 / scale)


def grouped(x: mx.array, size: int) -> mx.array:
    """`x` (…, D) as float32 groups (…, D / size, size)."""
    return x.astype(mx.float32).reshape(*x.shape[:-1], -1, size)


def ungrouped(groups: mx.array) -> mx.array:
    """Groups (…, n, size) as vectors (…, n · size)."""
    return groups.reshape(*groups.shape[:-2], -1)


def by_token_group(x: mx.array, tokens: int) -> mx.array:
    """`x` (…, n, D) as groups of tokens (…, n / tokens, tokens, D); floating-point values as float32."""
    shape = (*x.shape[:-2], -1, tokens, x.shape[-1])
    return (x.astype(mx.float32) if mx.issubdtype(x.dtype, mx.floating) else x).reshape(shape)


def over_tokens(groups: mx.array) -> mx.array:
    """Groups of tokens (…, m, tokens, D) as (…, m · tokens, D)."""
    return groups.reshape(*groups.shape[:-3], -1, groups.shape[-1])
