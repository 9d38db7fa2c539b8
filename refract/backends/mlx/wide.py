"""Packed codes to their levels through wide tables: one look-up gives several values, for bulk decoding.

Keys are 16 bits (four codes of 4 bits, eight of 2), 12 bits (four of 3) or 8 (eight of 1); a table holds the values of
every key, at most 2 MB. The bytes are those of `packing.pack_bits`.
"""

from __future__ import annotations

from functools import cache

import mlx.core as mx
import numpy as np

from refract.backends.mlx.codecs.codebooks import codebook_levels

_KEY_BITS = {1: 8, 2: 16, 3: 12, 4: 16}  # by bits of a code


def is_wide(bits: int, dim: int) -> bool:
    """Whether there is a table for codes of `bits`, and vectors of `dim` fill whole keys."""
    return bits in _KEY_BITS and dim % (8 if bits in (1, 3) else 16 // bits) == 0


@cache
def table(codebook: str, bits: int, dim: int) -> mx.array:
    """The values (2^key, codes a key) float32 of every key, the lowest bits' first."""
    levels = np.array(codebook_levels(codebook, bits, dim).values)
    keys = np.arange(1 << _KEY_BITS[bits])[:, None]
    codes = keys >> np.arange(0, _KEY_BITS[bits], bits) & ((1 << bits) - 1)
    return mx.array(levels[codes])


def level_values(packed: mx.array, codebook: str, bits: int, dim: int) -> mx.array:
    """The levels (…, D) float32 of packed codes (…, D · bits / 8) uint8."""
    found = table(codebook, bits, dim)[_keys(packed, bits)]
    return found.reshape(*packed.shape[:-1], dim)


def _keys(packed: mx.array, bits: int) -> mx.array:
    if bits == 1:
        return packed
    if bits != 3:
        return packed.view(mx.uint16)
    threes = packed.reshape(*packed.shape[:-1], -1, 3).astype(mx.uint16)
    low, middle, high = threes[..., 0], threes[..., 1], threes[..., 2]
    return mx.stack([low | (middle & 15) << 8, middle >> 4 | high << 4], axis=-1).reshape(*packed.shape[:-1], -1)
