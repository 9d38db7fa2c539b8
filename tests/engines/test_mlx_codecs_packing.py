"""Bits as they are held: every width goes in and out exactly, and takes the bytes it says."""

from __future__ import annotations

from math import ceil
from typing import Any

import numpy as np
import pytest
from codec_support import DIMS, codec, fits, gaussian

from refract.formats import BUILT
from refract.kv import parse_kv

pytestmark = pytest.mark.usefixtures("mlx")
MORE = [
    "turbo3:prod=1",
    "turbo1:prod=1",
    "hybridpc:ratio=0.3:bits=3",
    "polar:bits=3-2-1-1",
    "affine4:g=32",
    "rfsn3:g=64",
]
TOKENS = 128


@pytest.mark.parametrize("bits", range(1, 9))
def test_codes_of_every_width_come_back(bits: int) -> None:
    import mlx.core as mx

    from refract.backends.mlx.packing import pack_bits, unpack_bits

    for count in (1, 2, 3, 5, 8, 13, 64, 80):
        codes = np.random.default_rng(count).integers(0, 1 << bits, (3, 2, count)).astype(np.uint8)
        packed = pack_bits(mx.array(codes), bits)
        assert (packed.shape, packed.dtype) == ((3, 2, ceil(count * bits / 8)), mx.uint8)
        assert np.array_equal(np.array(unpack_bits(packed, bits, count)), codes)


def test_the_lowest_bits_come_first() -> None:
    import mlx.core as mx

    from refract.backends.mlx.packing import pack_bits

    assert pack_bits(mx.array([1, 2, 3, 4, 5, 6, 7, 0]), 3).tolist() == [0b11010001, 0b01011000, 0b00011111]


def padding(stored: Any) -> int:
    """Bits of a token, at most, that fill up words and bytes beyond what the codec says."""
    kind = type(getattr(stored, "codec", stored)).__name__
    return {"RFSN": 31, "Polar": 4 * 7, "HybridPC": 5 * 7}.get(kind, 0)


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("name", [*BUILT["mlx"], *MORE])
def test_packed_parts_decode_the_same_and_take_the_bits_they_say(name: str, dim: int) -> None:
    import mlx.core as mx

    from refract.backends.mlx.packing import decode_packed, pack, unpack

    if not fits(name, dim):
        assert dim in (80, 96)
        return
    stored = codec(name, dim)
    x = mx.array(gaussian(2 * TOKENS, dim)).reshape(1, 2, TOKENS, dim)
    parts = stored.encode(x)
    packed, shapes = pack(stored, parts), tuple(part.shape[3:] for part in parts)
    for one, other in zip(unpack(stored, packed, shapes), parts, strict=True):
        assert one.dtype == other.dtype
        assert mx.array_equal(one, other)
    whole = stored.decode(*parts)
    assert mx.array_equal(decode_packed(stored, packed, shapes), whole)
    held = sum(part.nbytes for part in packed) * 8 / (2 * TOKENS)
    said = stored.bits_per_value * dim
    assert said - 1e-6 <= held <= said + padding(stored) + 1e-6


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("bits", range(1, 9))
def test_turbo_takes_its_bits_and_one_half_a_vector_and_no_more(bits: int, dim: int) -> None:
    import mlx.core as mx

    from refract.backends.mlx.packing import pack

    stored = codec(f"turbo{bits}", dim)
    packed = pack(stored, stored.encode(mx.array(gaussian(50, dim)).reshape(1, 1, 50, dim)))
    assert sum(part.nbytes for part in packed) * 8 == 50 * (bits * dim + 16)
    assert parse_kv(f"ctk=turbo{bits},ctv=f16").k.bits_per_value(dim) == bits + 16 / dim
