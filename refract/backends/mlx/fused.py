"""Writing one token as one compiled function: its many small operations fused into a few, with the same results.

MLX compiles them for the machine when they are first used, and keeps what it made; where it has no compiler it runs
them as they are. Only for single tokens, whose shape never changes: another shape would be compiled anew.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import mlx.core as mx

from refract.backends.mlx.codecs.base import Codec
from refract.backends.mlx.packing import pack

Roundtrip = Callable[[mx.array], mx.array]
Write = Callable[[mx.array], list[mx.array]]


@cache
def fused_roundtrip(codec: Codec) -> Roundtrip:
    """`codec.roundtrip`."""
    compiled: Roundtrip = mx.compile(codec.roundtrip)
    return compiled


@cache
def fused_write(codec: Codec) -> Write:
    """x -> [what is decoded, *what is kept of it], as `pack` of `codec.encode` makes it."""

    def write(x: mx.array) -> list[mx.array]:
        parts = codec.encode(x)
        return [codec.decode(*parts), *pack(codec, parts)]

    compiled: Write = mx.compile(write)
    return compiled
