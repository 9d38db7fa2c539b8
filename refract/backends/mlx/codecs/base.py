"""What a KV codec is: a frozen value that knows how its format rounds a tensor and how many bits it stores."""

from __future__ import annotations

from typing import Protocol

import mlx.core as mx


class Codec(Protocol):
    """One storage format of keys or of values, for one head dimension."""

    @property
    def name(self) -> str:
        """The format's canonical text, as the catalogue spells it."""

    @property
    def bits_per_value(self) -> float:
        """Stored bits per value, scales and norms included."""

    def roundtrip(self, x: mx.array) -> mx.array:
        """What reading `x` (…, D) back gives, same shape and dtype; every vector along the last axis on its own.

        NaN and infinity propagate to the vector or block they lie in.
        """
