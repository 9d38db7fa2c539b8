"""Codes of a codec as bits: the parts that `encode` makes, bit-packed token by token, and back.

Codes of b bits fill bytes, lowest bits first; the last byte of a row is filled up with zeros. RFSN's are its own 32-bit
words. Tokens stay along axis 2, each packed on its own, so that any range of them can be cut out.
"""

from __future__ import annotations

import mlx.core as mx

from refract.backends.mlx.codecs.base import Codec, code_bits_of
from refract.backends.mlx.codecs.rfsn import RFSN
from refract.backends.mlx.codecs.rfsn import pack as pack_words
from refract.backends.mlx.codecs.rfsn import unpack as unpack_words
from refract.backends.mlx.codecs.rotations import Rotated
from refract.backends.mlx.codecs.sketch import Sketched
from refract.backends.mlx.codecs.turbo import Turbo
from refract.backends.mlx.wide import is_wide, level_values

Parts = tuple[mx.array, ...]
Shapes = tuple[tuple[int, ...], ...]


def pack_bits(codes: mx.array, bits: int) -> mx.array:
    """Bytes (…, ⌈n · bits / 8⌉) uint8 of codes (…, n) below 2^bits."""
    if bits == 8:
        return codes.astype(mx.uint8)
    count = codes.shape[-1]
    spare = -count % 8
    padded = mx.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, spare)]) if spare else codes
    eights = padded.astype(mx.uint64).reshape(*codes.shape[:-1], -1, 8)
    words = mx.sum(eights << (mx.arange(8, dtype=mx.uint64) * bits), axis=-1, keepdims=True)
    split = words >> (mx.arange(bits, dtype=mx.uint64) * 8) & 255
    return split.astype(mx.uint8).reshape(*codes.shape[:-1], -1)[..., : -(-count * bits // 8)]


def unpack_bits(packed: mx.array, bits: int, count: int) -> mx.array:
    """The first `count` codes (…, count) uint8 of the bytes that `pack_bits` made."""
    if bits == 8:
        return packed
    spare = -packed.shape[-1] % bits
    padded = mx.pad(packed, [(0, 0)] * (packed.ndim - 1) + [(0, spare)]) if spare else packed
    split = padded.reshape(*packed.shape[:-1], -1, bits).astype(mx.uint64)
    words = mx.sum(split << (mx.arange(bits, dtype=mx.uint64) * 8), axis=-1, keepdims=True)
    codes = words >> (mx.arange(8, dtype=mx.uint64) * bits) & ((1 << bits) - 1)
    return codes.astype(mx.uint8).reshape(*packed.shape[:-1], -1)[..., :count]


def pack(codec: Codec, parts: Parts) -> Parts:
    """What is kept of the parts that `codec.encode` made."""
    if isinstance(codec, Sketched):
        signs = pack_bits(parts[-2], 1)
        own = () if codec.codec is None else pack(codec.codec, parts[:-2])
        return (*own, signs, parts[-1])
    if isinstance(codec, Rotated):
        return pack(codec.codec, parts)
    if isinstance(codec, RFSN):
        codes, scales = parts
        return pack_words(codes.reshape(*codes.shape[:-2], -1), codec.bits), scales
    bits = code_bits_of(codec)
    codes = (pack_bits(part, b) if b else part for part, b in zip(parts, bits, strict=False))
    return (*codes, *parts[len(bits) :])


def unpack(codec: Codec, packed: Parts, shapes: Shapes) -> Parts:
    """The parts of `shapes`, those behind axis 2 each, that `pack` was given."""
    if isinstance(codec, Sketched):
        signs = unpack_bits(packed[-2], 1, shapes[-2][-1])
        own = () if codec.codec is None else unpack(codec.codec, packed[:-2], shapes[:-2])
        return (*own, signs, packed[-1])
    if isinstance(codec, Rotated):
        return unpack(codec.codec, packed, shapes)
    if isinstance(codec, RFSN):
        words, scales = packed
        groups, size = shapes[0]
        return unpack_words(words, codec.bits, groups * size).reshape(*words.shape[:-1], groups, size), scales
    bits = code_bits_of(codec)
    codes = (unpack_bits(p, b, s[-1]) if b else p for p, b, s in zip(packed, bits, shapes, strict=False))
    return (*codes, *packed[len(bits) :])


def decode_packed(codec: Codec, packed: Parts, shapes: Shapes) -> mx.array:
    """What `codec` decodes of packed parts, through wide tables where there are some; bit for bit the same."""
    if isinstance(codec, Turbo) and is_wide(codec.bits, codec.dim):
        codes, scales = packed
        return codec.scaled(level_values(codes, codec.codebook, codec.bits, codec.dim), scales)
    return codec.decode(*unpack(codec, packed, shapes))
